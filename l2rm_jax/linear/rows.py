"""Arrays `[n, d]` with one vector per image or caption, read block by block to save memory."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Int

BLOCK = 4096  # rows
_ROUNDED = 128  # sizes of blocks are multiples of it


@runtime_checkable
class Rows(Protocol):
    """Protocol of a float array `[rows, dimensions]` that is indexed by arrays of row numbers.

    NumPy arrays and memory-mapped files are `Rows`. So are objects that compute requested rows, for
    example word counts times a matrix.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of dimensions."""

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n dimensions"]:
        """Return these rows in this order; rows may be repeated."""


class TakenRows:
    """Selection of rows of other `Rows`; rows are read only when it is indexed."""

    def __init__(self, vectors: Rows, rows: Int[np.ndarray, " taken"]):
        self._vectors, self._rows = vectors, rows
        self.shape = len(rows), vectors.shape[1]

    def __getitem__(self, at: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n dimensions"]:
        """Return rows of the selection, numbered from 0."""
        return self._vectors[self._rows[at]]


def unit_rows(vectors: Float[np.ndarray, "n d"]) -> Float32[np.ndarray, "n d"]:
    """Return the vectors divided by their Euclidean lengths, as float32; zero vectors stay zero."""
    vectors = np.asarray(vectors, np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def padded_blocks(
    rows: Int[np.ndarray, " n"], most: int | None = None
) -> Iterator[tuple[Int[np.ndarray, " size"], int]]:
    """Iterate over blocks of equal size, so that a compiled program sees one shape.

    The size is the number of rows, rounded up to the next multiple of 128, so that folds of similar
    size share their compiled programs; or `most`, if that is less.

    Args:
      rows: the rows; may be none.
      most: maximum number of rows per block; None: all.

    Yields:
      The block, and the number of its valid rows. The last block is filled up with its last row.
    """
    size = -(-len(rows) // _ROUNDED) * _ROUNDED
    size = size if most is None else min(most, size)
    for start in range(0, len(rows), max(size, 1)):
        block = rows[start : start + size]
        yield np.pad(block, (0, size - len(block)), mode="edge"), len(block)
