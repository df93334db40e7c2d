"""Rows: one vector an image or caption, read in blocks, so that memory does not grow with them."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Int

BLOCK = 4096  # rows
_ROUNDED = 128  # sizes of blocks are multiples of it


@runtime_checkable
class Rows(Protocol):
    """An array [rows, dimensions], a memory-mapped one, or an object that computes its rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of dimensions."""

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n dimensions"]:
        """Read some rows."""


class TakenRows:
    """Some rows of vectors, read when they are asked for."""

    def __init__(self, vectors: Rows, rows: Int[np.ndarray, " taken"]):
        self._vectors, self._rows = vectors, rows
        self.shape = len(rows), vectors.shape[1]

    def __getitem__(self, at: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n dimensions"]:
        """Read some of them."""
        return self._vectors[self._rows[at]]


def unit_rows(vectors: Float[np.ndarray, "n d"]) -> Float32[np.ndarray, "n d"]:
    """Return vectors of length 1; one of zeros stays."""
    vectors = np.asarray(vectors, np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def padded_blocks(
    rows: Int[np.ndarray, " n"], most: int | None = None
) -> Iterator[tuple[Int[np.ndarray, " size"], int]]:
    """Iterate over blocks of equal size, so that a compiled program sees one shape.

    The size is that of all rows, rounded up to the next multiple of 128, so that folds of similar
    size share their compiled programs; or `most`, if that is less.

    Args:
      rows: the rows; may be none.
      most: rows of a block, at most; None: all.

    Yields:
      The block, and how many of its rows count. The last block is filled up with its last row.
    """
    size = -(-len(rows) // _ROUNDED) * _ROUNDED
    size = size if most is None else min(most, size)
    for start in range(0, len(rows), max(size, 1)):
        block = rows[start : start + size]
        yield np.pad(block, (0, size - len(block)), mode="edge"), len(block)
