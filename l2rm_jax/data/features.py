"""Features of images and of captions: sets of vectors, read row by row from a memory-mapped file.

An image is a set of regions. A caption is one of words where it is given by vectors (CLIP, SigLIP,
...), and all that is said here of images and regions holds for captions and words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int, Int32

from l2rm_jax.data.files import open_array
from l2rm_jax.errors import DataError, Problems

_FORMATS = (
    "float32, float16, or int8 with its factors, of rank 3 [images, regions, dimensions], or of "
    "rank 2 with one vector each"
)


class _Kind(NamedTuple):
    """What a set of vectors is made of, and the file that says how many."""

    vector: str
    counts: str


# By the end of the file's name.
_KINDS = {"ims": _Kind("region", "regions"), "caps": _Kind("word", "lengths")}


class Gathered:
    """Rows of an array in another order, read only when they are asked for.

    Looks like `array[index]` as far as `RegionFeatures` looks.
    """

    def __init__(self, array: np.ndarray, index: Int[np.ndarray, "..."]):
        self._array, self._index = array, index
        self.shape = index.shape + array.shape[1:]
        self.ndim, self.dtype = len(self.shape), array.dtype
        self.nbytes = math.prod(self.shape) * array.dtype.itemsize

    def __getitem__(self, rows: slice | np.ndarray) -> "np.ndarray | Gathered":
        if isinstance(rows, slice):
            return Gathered(self._array, self._index[rows])
        return self._array[self._index[rows]]


@dataclass(frozen=True)
class RegionFeatures:
    """Features [images, regions, dimensions], float32 whatever the file stores.

    An image may have fewer regions than the array has room for; what is stored after them is never
    seen.

    Attributes:
      name: the file, or what stands for it in error messages.
      array: what is stored, memory-mapped or in memory, or rows of it.
      counts: regions of each stored row, 1 to the array's second dimension.
      scale: [dimensions] factor of int8 features.
      stride: stored rows per image.
      vector: what one vector is called in messages.
    """

    name: str
    array: np.ndarray | Gathered
    counts: Int32[np.ndarray, " stored"]
    scale: np.ndarray | None = None
    stride: int = 1
    vector: str = "region"

    @classmethod
    def read(cls, path: str | Path, clip_counts: bool = False) -> "RegionFeatures":
        """Open `{split}_ims.npy` or `{split}_caps.npy`, of rank 3, or 2 with one vector each.

        int8 takes its factors from `ims_scale.npy` (`caps_scale.npy`) beside it. Integers [rows] in
        `{split}_regions.npy` (`{split}_lengths.npy`) beside it say how many leading vectors of each
        row are real; without that file all are.

        Args:
          path: the file.
          clip_counts: takes the nearest possible count for an impossible one, to see the rest.

        Raises:
          DataError: missing or truncated file, wrong rank or dtype, unusable factors or counts.
        """
        problems = Problems()
        path = Path(path)
        split, _, end = path.stem.rpartition("_")
        kind = _KINDS[end]
        array = _as_sets(str(path), open_array(path), (np.float32, np.float16, np.int8))
        scale = None
        if array.dtype == np.int8:
            beside = path.with_name(f"{end}_scale.npy")
            scale = problems.attempt(_read_scale, path, beside, dimensions=array.shape[2])
        beside = path.with_name(f"{split}_{kind.counts}.npy")
        counts = problems.attempt(_read_counts, beside, array, kind.vector, clip=clip_counts)
        problems.refuse()
        return cls(str(path), array, counts, scale, vector=kind.vector)

    @classmethod
    def from_array(
        cls,
        array: Float[np.ndarray, "images regions dimensions"],
        name: str,
        counts: Int[np.ndarray, " images"] | None = None,
    ) -> "RegionFeatures":
        """Take features that are in memory already (float32 or float16).

        Args:
          array: the features, of rank 3, or 2 with one vector each.
          name: what stands for them in error messages.
          counts: regions of each image; None where all are real.

        Raises:
          DataError: wrong rank or dtype, unusable counts.
        """
        array = _as_sets(name, array, (np.float32, np.float16))
        return cls(name, array, _checked_counts(f"{name}, region counts", counts, array, "region"))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Images, regions, dimensions; each image counts once."""
        rows, regions, dimensions = self.array.shape
        return rows // self.stride, regions, dimensions

    def __len__(self) -> int:
        return self.shape[0]

    def head(self, images: int) -> "RegionFeatures":
        """The first `images` images."""
        if not 1 <= images <= len(self):
            raise DataError(f"{self.name}: asked for the first {images} of {len(self)} images")
        stored = images * self.stride
        return replace(self, array=self.array[:stored], counts=self.counts[:stored])

    def take(self, images: Int[np.ndarray, " taken"]) -> "RegionFeatures":
        """Some of the images, in the order given; nothing is read.

        Raises:
          DataError: a number out of range.
        """
        stored = self._stored(images)
        return replace(
            self, array=Gathered(self.array, stored), counts=self.counts[stored], stride=1
        )

    def rows(
        self, indices: Sequence[int] | np.ndarray
    ) -> Float32[np.ndarray, "rows regions dimensions"]:
        """Read the features of some images, zero after the last region of each.

        Args:
          indices: [rows] image numbers, 0 to images - 1.

        Raises:
          DataError: a number out of range, or features that are NaN or infinite, one problem a row.
        """
        stored = self._stored(indices)
        rows = np.ascontiguousarray(self.array[stored])  # the file may be in Fortran's order
        if self.scale is None:
            rows = rows.astype(np.float32, copy=False)
        else:
            with np.errstate(over="ignore"):  # infinite numbers are refused below
                rows = np.multiply(rows, self.scale, dtype=np.float32)
        rows[np.arange(rows.shape[1]) >= self.counts[stored, None]] = 0.0
        finite = np.isfinite(rows)
        if not finite.all():
            bad = np.argwhere(~finite)
            first_of_row = np.unique(bad[:, 0], return_index=True)[1]
            raise DataError(
                *(
                    f"{self.name}: row {stored[at]} holds {rows[at, vector, dimension]} "
                    f"({self.vector} {vector}, dimension {dimension}), expected finite numbers"
                    for at, vector, dimension in bad[first_of_row]
                )
            )
        return rows

    def region_counts(self, indices: Sequence[int] | np.ndarray) -> Int32[np.ndarray, " rows"]:
        """How many regions some images have.

        Args:
          indices: [rows] image numbers, 0 to images - 1.

        Raises:
          DataError: a number out of range.
        """
        return self.counts[self._stored(indices)]

    def _stored(self, indices: Sequence[int] | np.ndarray) -> Int[np.ndarray, " rows"]:
        """The stored row of each image."""
        indices = np.asarray(indices)
        outside = np.flatnonzero((indices < 0) | (indices >= len(self)))
        if len(outside):
            raise DataError(
                f"{self.name}: asked for image {indices[outside[0]]}, expected 0 to {len(self) - 1}"
            )
        return indices * self.stride


def _as_sets(name: str, array: np.ndarray, dtypes: Sequence[type]) -> np.ndarray:
    """The array as sets of vectors: where each row is one vector, as sets of one."""
    if array.ndim not in (2, 3) or array.dtype not in dtypes or 0 in array.shape:
        raise DataError(f"{name}: found {array.dtype} {list(array.shape)}, expected {_FORMATS}")
    return array if array.ndim == 3 else array[:, None]


def _read_counts(
    path: Path, features: np.ndarray, vector: str, clip: bool
) -> Int32[np.ndarray, " stored"]:
    counts = open_array(path) if path.exists() else None
    return _checked_counts(str(path), counts, features, vector, clip)


def _checked_counts(
    name: str, counts: np.ndarray | None, features: np.ndarray, vector: str, clip: bool = False
) -> Int32[np.ndarray, " stored"]:
    """The counts of all rows, in memory; those of a full array where there are none."""
    stored, regions, _ = features.shape
    if counts is None:
        return np.full(stored, regions, np.int32)
    if counts.shape != (stored,) or counts.dtype.kind not in "iu":
        raise DataError(
            f"{name}: found {counts.dtype} {list(counts.shape)}, expected integers [{stored}], one "
            "for each row of features"
        )
    wrong = np.flatnonzero((counts < 1) | (counts > regions))
    if len(wrong) and not clip:
        expected = f"expected 1 to {regions} {vector}s"
        raise DataError(*(f"{name}: entry {at} is {counts[at]}, {expected}" for at in wrong))
    return counts.astype(np.int64).clip(1, regions).astype(np.int32)


def _read_scale(features: Path, path: Path, dimensions: int) -> Float32[np.ndarray, " dimensions"]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; the int8 features of {features} need it")
    scale = np.array(open_array(path))
    if scale.shape != (dimensions,) or scale.dtype != np.float32:
        raise DataError(
            f"{path}: found {scale.dtype} {list(scale.shape)}, expected float32 [{dimensions}]"
        )
    bad = np.flatnonzero(~np.isfinite(scale))
    if len(bad):
        expected = "expected a finite number"
        raise DataError(*(f"{path}: entry {at} is {scale[at]}, {expected}" for at in bad))
    return scale
