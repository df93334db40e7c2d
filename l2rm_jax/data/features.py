"""Region features of images, read row by row from a memory-mapped file."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32

from l2rm_jax.data.files import open_array
from l2rm_jax.errors import DataError

REPEATS = 5  # some releases store each image once for each of its five captions
_SAMPLED_BLOCKS = 64
_FORMATS = "float32, float16, or int8 with ims_scale.npy, of rank 3 [images, regions, dimensions]"


@dataclass(frozen=True)
class RegionFeatures:
    """Features [images, regions, dimensions], float32 whatever the file stores.

    Attributes:
      name: the file, or what stands for it in error messages.
      array: what is stored, memory-mapped or in memory.
      scale: [dimensions] factor of int8 features.
      stride: stored rows per image.
    """

    name: str
    array: np.ndarray
    scale: np.ndarray | None = None
    stride: int = 1

    @classmethod
    def read(cls, path: str | Path) -> "RegionFeatures":
        """Open a `.npy` file; int8 takes its factors from `ims_scale.npy` beside it.

        Raises:
          DataError: missing or truncated file, wrong rank or dtype, unusable factors.
        """
        path = Path(path)
        array = open_array(path)
        _check_format(str(path), array, (np.float32, np.float16, np.int8))
        scale = None
        if array.dtype == np.int8:
            scale = _read_scale(path, dimensions=array.shape[2])
        return cls(str(path), array, scale)

    @classmethod
    def from_array(
        cls, array: Float[np.ndarray, "images regions dimensions"], name: str
    ) -> "RegionFeatures":
        """Take features that are in memory already (float32 or float16)."""
        _check_format(name, array, (np.float32, np.float16))
        return cls(name, array)

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
        return replace(self, array=self.array[: images * self.stride])

    def rows(
        self, indices: Sequence[int] | np.ndarray
    ) -> Float32[np.ndarray, "rows regions dimensions"]:
        """Read the features of some images.

        Args:
          indices: [rows] image numbers, 0 to images - 1.

        Raises:
          DataError: a number out of range, or features that are NaN or infinite, one problem a row.
        """
        indices = np.asarray(indices)
        outside = np.flatnonzero((indices < 0) | (indices >= len(self)))
        if len(outside):
            raise DataError(
                f"{self.name}: asked for image {indices[outside[0]]}, expected 0 to {len(self) - 1}"
            )
        stored = self.array[indices * self.stride]
        if self.scale is not None:
            return np.multiply(stored, self.scale, dtype=np.float32)
        rows = stored.astype(np.float32, copy=False)
        finite = np.isfinite(rows)
        if not finite.all():
            bad = np.argwhere(~finite)
            first_of_row = np.unique(bad[:, 0], return_index=True)[1]
            raise DataError(
                *(
                    f"{self.name}: row {indices[at] * self.stride} holds "
                    f"{rows[at, region, dimension]} (region {region}, dimension {dimension}), "
                    "expected finite numbers"
                    for at, region, dimension in bad[first_of_row]
                )
            )
        return rows


def undo_repeats(features: RegionFeatures) -> RegionFeatures:
    """See each image once if the file stores blocks of five identical rows, one per caption.

    Whether it does is found by comparing rows: a sample of blocks whole and, if these agree, the
    first region of every block.

    Raises:
      DataError: most blocks are repeated images but some are not.
    """
    count, rest = divmod(len(features), REPEATS)
    if rest:
        return features
    blocks = [features.array[start : start + REPEATS] for start in range(0, len(features), REPEATS)]
    sample = np.unique(np.linspace(0, count - 1, min(count, _SAMPLED_BLOCKS)).astype(int))
    same = [_identical(blocks[block]) for block in sample]
    if 2 * sum(same) <= len(same):
        return features
    different = [block for block, ok in zip(sample, same, strict=True) if not ok]
    different += [at for at, block in enumerate(blocks) if not _identical(block[:, 0])]
    refuse_different(features.name, different)
    logging.getLogger(__name__).info(
        "%s: each image is stored %d times; read as %d images", features.name, REPEATS, count
    )
    return replace(features, stride=REPEATS)


def refuse_different(name: str, blocks: Sequence[int]) -> None:
    """Raises `DataError` if there are blocks whose rows differ among blocks of repeated rows."""
    if len(blocks):
        raise DataError(
            *(
                f"{name}: rows {block * REPEATS} to {(block + 1) * REPEATS - 1} differ while most "
                f"blocks of {REPEATS} rows are one repeated image; expected all or none to be"
                for block in sorted(set(blocks))
            )
        )


def _identical(rows: np.ndarray) -> bool:
    """Whether all rows have the same bytes (so that NaN equals NaN)."""
    stored = rows.reshape(len(rows), -1).view(np.uint8)
    return bool((stored[1:] == stored[0]).all())


def _check_format(name: str, array: np.ndarray, dtypes: Sequence[type]) -> None:
    if array.ndim != 3 or array.dtype not in dtypes or 0 in array.shape:
        raise DataError(f"{name}: found {array.dtype} {list(array.shape)}, expected {_FORMATS}")


def _read_scale(features: Path, dimensions: int) -> Float32[np.ndarray, " dimensions"]:
    path = features.with_name("ims_scale.npy")
    if not path.is_file():
        raise DataError(f"{path}: no such file; the int8 features of {features} need it")
    scale = np.array(open_array(path))
    if scale.shape != (dimensions,) or scale.dtype != np.float32:
        raise DataError(
            f"{path}: found {scale.dtype} {list(scale.shape)}, expected float32 [{dimensions}]"
        )
    bad = np.flatnonzero(~np.isfinite(scale))
    if len(bad):
        raise DataError(f"{path}: entry {bad[0]} is {scale[bad[0]]}, expected a finite number")
    return scale
