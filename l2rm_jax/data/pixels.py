"""Pictures as pixels, `{split}_pixels.npy`, read row by row from a memory-mapped file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int32, UInt8

from l2rm_jax.data.features import ImageRows, LazyRows
from l2rm_jax.data.files import check_form, open_array
from l2rm_jax.data.npy_files import still_whole


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
