"""Features, sets of vectors, and pictures as pixels, read row by row from memory-mapped files.

An image is a set of region vectors. A caption can be a set of word vectors (from CLIP, SigLIP,
...), which is stored and read in the same way. Below, "image" and "region" then also mean "caption"
and "word".
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, Int, Int32, UInt8

from l2rm_jax.console import progress_bar
from l2rm_jax.data.files import check_entries, check_form, open_array
from l2rm_jax.data.npy_files import still_whole
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.jobs.regular_files import has_file

_BLOCK_BYTES = 1 << 25  # of a block as float32
_FLOATS = (np.float32, np.float64, np.float16)
_FORMATS = (
    "float32, float64, float16, or int8 with a scale file; rank 3 [images, regions, dimensions], "
    "or rank 2 [images, dimensions] with one vector per image"
)


# By the last part of a feature file's name: the name of its vectors in error messages, and in the
# name of the file with their number per row.
_KINDS = {"ims": ("region", "regions"), "caps": ("word", "lengths")}


class LazyRows:
    """A stand-in for `array[index]` that reads rows only when they are indexed.

    It has only the attributes that `RegionFeatures` uses.
    """

    def __init__(self, array: np.ndarray, index: Int[np.ndarray, "..."]):
        self._array, self._index = array, index
        self.shape = index.shape + array.shape[1:]
        self.ndim, self.dtype = len(self.shape), array.dtype
        self.nbytes = math.prod(self.shape) * array.dtype.itemsize

    def __getitem__(self, rows: slice | np.ndarray) -> "np.ndarray | LazyRows":
        if isinstance(rows, slice):
            return LazyRows(self._array, self._index[rows])
        return still_whole(self._array)[self._index[rows]]


class ImageRows:
    """Images of some kind, with a `name` for error messages, an `array`, and `take`."""

    entry_bytes = 4  # of a number, as it is read

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of images, and shape of each: regions and dimensions, or pixels and colours."""
        return self.array.shape

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self) -> Iterator[Int[np.ndarray, " block"]]:
        """Image numbers in order, in blocks of about 32 MB; a progress bar shows the progress."""
        size = max(1, _BLOCK_BYTES // (math.prod(self.shape[1:]) * self.entry_bytes))
        with progress_bar(len(self), f"reading {self.name}", unit="rows") as bar:
            for start in range(0, len(self), size):
                block = np.arange(start, min(start + size, len(self)))
                yield block
                bar.update(len(block))

    def _checked_rows(self, indices: Sequence[int] | np.ndarray) -> Int[np.ndarray, " rows"]:
        """Numbers of images as an array, checked to be in range."""
        indices = np.asarray(indices)
        outside = np.flatnonzero((indices < 0) | (indices >= len(self)))
        if len(outside):
            raise DataError(
                f"{self.name}: found image index {indices[outside[0]]}, expected 0 to "
                f"{len(self) - 1}"
            )
        return indices

    def head(self, images: int) -> "ImageRows":
        """Return the first `images` images.

        Raises:
          DataError: there are fewer images, or `images` is less than 1.
        """
        if not 1 <= images <= len(self):
            raise DataError(f"{self.name}: found {len(self)} images, expected at least {images}")
        return self.take(np.arange(images))


@dataclass(frozen=True)
class RegionFeatures(ImageRows):
    """Features [images, regions, dimensions], read as float32 from any stored dtype.

    An image may have fewer regions than the array has room for. Stored values after an image's last
    region are ignored and read as zeros.

    Attributes:
      name: path of the file, or another name for error messages.
      array: [stored, regions, dimensions] stored features, memory-mapped or in memory.
      counts: [stored] number of regions of each stored row, at least 1.
      scale: [dimensions] factors that turn int8 features into float32; None for other dtypes.
      copies: rows of the file per image; 5 if it repeats each image for each of its captions. Only
        the first of them is among the stored rows.
      vector: name of one vector in error messages.
      labels: [stored] number of each stored row in the file, for error messages; None numbers them
        from 0.
    """

    name: str
    array: np.ndarray | LazyRows
    counts: Int32[np.ndarray, " stored"]
    scale: np.ndarray | None = None
    copies: int = 1
    vector: str = "region"
    labels: np.ndarray | None = None

    @classmethod
    def read(cls, path: str | Path, clip_counts: bool = False) -> "RegionFeatures":
        """Open `{split}_ims.npy` or `{split}_caps.npy`, of rank 3, or rank 2 with one vector each.

        Two more files are read from the same directory:

        * `ims_scale.npy` (`caps_scale.npy`), float32 or float64 [dimensions], is required for int8
          features: the factor of each dimension.
        * `{split}_regions.npy` (`{split}_lengths.npy`), integers [rows], is optional: the number of
          valid leading vectors of each row. Without it, all are valid.

        Args:
          path: the feature file.
          clip_counts: clip counts that are out of range instead of raising, so that the features
            can still be checked.

        Raises:
          DataError: a missing or truncated file, a wrong rank or dtype, or an invalid scale or
            counts file; lists every problem.
        """
        problems = Problems()
        path = Path(path)
        split, _, ending = path.stem.rpartition("_")
        vector, counts_name = _KINDS[ending]
        array = _as_sets(str(path), open_array(path), (*_FLOATS, np.int8))
        scale = None
        if array.dtype == np.int8:
            scale_file = path.with_name(f"{ending}_scale.npy")
            scale = problems.attempt(_read_scale, path, scale_file, dimensions=array.shape[2])
        counts_file = path.with_name(f"{split}_{counts_name}.npy")
        counts = problems.attempt(_read_counts, counts_file, array, vector, clip=clip_counts)
        problems.raise_all()
        return cls(str(path), array, counts, scale, vector=vector)

    @classmethod
    def from_array(
        cls,
        array: Float[np.ndarray, "images ... dimensions"] | LazyRows,
        name: str,
        counts: Int[np.ndarray, " images"] | None = None,
        vector: str = "region",
    ) -> "RegionFeatures":
        """Wrap features that are already in memory (float32, float64 or float16).

        Args:
          array: the features, of rank 3, or rank 2 with one vector each.
          name: name of the features in error messages.
          counts: number of regions of each image; None if all are valid.
          vector: as the attribute.

        Raises:
          DataError: a wrong rank or dtype, or invalid counts.
        """
        array = _as_sets(name, array, _FLOATS)
        counts = _checked_counts(f"{name}, {vector} counts", counts, array, vector)
        return cls(name, array, counts, vector=vector)

    def take(self, images: Int[np.ndarray, " taken"]) -> "RegionFeatures":
        """Return the images of the given rows, in that order, without reading their features.

        Raises:
          DataError: a row is out of range.
        """
        rows = self._checked_rows(images)
        return replace(
            self,
            array=LazyRows(self.array, rows),
            counts=self.counts[rows],
            labels=rows if self.labels is None else self.labels[rows],
        )

    def rows(
        self, indices: Sequence[int] | np.ndarray
    ) -> Float32[np.ndarray, "rows regions dimensions"]:
        """Read the features of some images as float32, zeros after the last region of each.

        Args:
          indices: [rows] image numbers, 0 to images - 1.

        Raises:
          DataError: a number is out of range, or features are NaN, infinite or too large for
            float32; lists one problem for each such row.
        """
        stored = self._checked_rows(indices)
        # The file may be in Fortran order.
        source = np.ascontiguousarray(still_whole(self.array)[stored])
        with np.errstate(over="ignore"):  # the check below finds infinities
            if self.scale is None:
                rows = source.astype(np.float32, copy=False)
            else:
                rows = np.multiply(source, self.scale, dtype=np.float32)
        rows[np.arange(rows.shape[1]) >= self.counts[stored, None]] = 0.0
        finite = np.isfinite(rows)
        if not finite.all():
            bad = np.argwhere(~finite)
            first_of_row = np.unique(bad[:, 0], return_index=True)[1]
            values = source if self.scale is None else rows
            raise DataError(
                *(
                    self._describe_bad_value(values[tuple(place)], stored[place[0]], *place[1:])
                    for place in bad[first_of_row]
                )
            )
        return rows

    def region_counts(self, indices: Sequence[int] | np.ndarray) -> Int32[np.ndarray, " rows"]:
        """Number of regions of some images.

        Args:
          indices: [rows] image numbers, 0 to images - 1.

        Raises:
          DataError: a number is out of range.
        """
        return self.counts[self._checked_rows(indices)]

    def _describe_bad_value(
        self, value: np.number, stored: int, vector: int, dimension: int
    ) -> str:
        """Error message for a value that is not finite as float32."""
        row = stored if self.labels is None else self.labels[stored]
        expected = "numbers within the range of float32" if np.isfinite(value) else "finite numbers"
        return (
            f"{self.name}: row {row}: found {value} "
            f"({self.vector} {vector}, dimension {dimension}), expected {expected}"
        )


@dataclass(frozen=True)
class Pixels(ImageRows):
    """Pictures [images, S, S, 3] of bytes, which a vision transformer encodes within the model.

    It has the public interface of `RegionFeatures`. A picture counts as one region.

    Attributes:
      name: path of the file, or another name for error messages.
      array: the pictures, memory-mapped or in memory.
    """

    name: str
    array: np.ndarray | LazyRows
    entry_bytes = 1
    copies: int = 1  # as of features; pictures are never repeated

    @classmethod
    def read(cls, path: str | Path) -> "Pixels":
        """Open `{split}_pixels.npy`.

        Raises:
          DataError: a missing or truncated file, or a wrong rank or dtype.
        """
        return cls.from_array(open_array(Path(path)), str(path))

    @classmethod
    def from_array(cls, array: np.ndarray, name: str) -> "Pixels":
        """Wrap pictures that are already in memory.

        Raises:
          DataError: a wrong rank or dtype, or pictures that are not square.
        """
        shape = array.shape
        is_square = array.ndim == 4 and shape[1] == shape[2] and shape[3] == 3
        is_valid = array.dtype == np.uint8 and is_square and 0 not in shape
        check_form(name, array, is_valid, "pictures, uint8 [images, size, size, 3]")
        return cls(name, array)

    def take(self, images: Int[np.ndarray, " taken"]) -> "Pixels":
        """Return the images of the given rows, in that order, without reading their pixels.

        Raises:
          DataError: a row is out of range.
        """
        return replace(self, array=LazyRows(self.array, self._checked_rows(images)))

    def rows(self, indices: Sequence[int] | np.ndarray) -> UInt8[np.ndarray, "rows S S 3"]:
        """Read some pictures.

        Args:
          indices: [rows] image numbers, 0 to images - 1.

        Raises:
          DataError: a number is out of range.
        """
        return np.ascontiguousarray(still_whole(self.array)[self._checked_rows(indices)])

    def region_counts(self, indices: Sequence[int] | np.ndarray) -> Int32[np.ndarray, " rows"]:
        """Return 1 for each picture; the model knows the number of its patches.

        Raises:
          DataError: a number is out of range.
        """
        return np.ones(len(self._checked_rows(indices)), np.int32)


def _as_sets(name: str, array: np.ndarray, dtypes: Sequence[type]) -> np.ndarray:
    """Check rank and dtype; return rank 3, where an array of rank 2 gives sets of one vector."""
    is_valid = array.ndim in (2, 3) and array.dtype in dtypes and 0 not in array.shape
    check_form(name, array, is_valid, _FORMATS)
    return array if array.ndim == 3 else array[:, None]


def _read_counts(
    path: Path, features: np.ndarray, vector: str, clip: bool
) -> Int32[np.ndarray, " stored"]:
    """Read the counts file; without one, all vectors are valid."""
    counts = open_array(path) if path.exists() else None
    return _checked_counts(str(path), counts, features, vector, clip)


def _checked_counts(
    name: str, counts: np.ndarray | None, features: np.ndarray, vector: str, clip: bool = False
) -> Int32[np.ndarray, " stored"]:
    """Check the counts and return them as int32; None means that all vectors are valid."""
    stored, regions, _ = features.shape
    if counts is None:
        return np.full(stored, regions, np.int32)
    is_valid = counts.shape == (stored,) and counts.dtype.kind in "iu"
    check_form(name, counts, is_valid, f"integers [{stored}], one per row of features")
    if not clip:
        is_count = (counts >= 1) & (counts <= regions)
        check_entries(name, counts, is_count, f"1 to {regions} {vector}s")
    return counts.astype(np.int64).clip(1, regions).astype(np.int32)


def _read_scale(features: Path, path: Path, dimensions: int) -> Float32[np.ndarray, " dimensions"]:
    """Read the scale file of int8 features."""
    if not has_file(path):
        raise DataError(f"{path}: no such file; the int8 features of {features} require it")
    scale = open_array(path)
    is_valid = scale.shape == (dimensions,) and scale.dtype in (np.float32, np.float64)
    check_form(path, scale, is_valid, f"float32 or float64 [{dimensions}]")
    with np.errstate(over="ignore"):  # the check below finds infinities
        scale = scale.astype(np.float32)
    check_entries(path, scale, np.isfinite(scale), "a finite number")
    return scale
