"""Write `.npy` files row by row, so that a full disk is an error that names the file."""

import itertools
import math
from pathlib import Path

import numpy as np
from jaxtyping import Int, Shaped

from l2rm_jax.data.files import named_if_full

_ROWS = 4096  # rows of an array that are written at once


class RowFile:
    """A new `.npy` file whose rows are written in any order; use it as a context manager.

    It is not memory-mapped: where the disk is full, writing to a map ends the process with a
    signal, and writing to a file raises an error.

    Args:
      path: the file.
      dtype: type of the numbers.
      shape: shape of the array; rows that are never written are zeros.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]):
        self._path, self._dtype, self._shape = path, dtype, shape
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        with named_if_full(path):
            self._file = path.open("wb")
            np.lib.format.write_array_header_1_0(self._file, header)
            self._start = self._file.tell()

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *_: object) -> None:
        with named_if_full(self._path), self._file:
            self._file.truncate(self._start + self._shape[0] * self._row_bytes)

    def write(self, rows: Int[np.ndarray, " n"], values: Shaped[np.ndarray, "n ..."]) -> None:
        """Write rows; places that follow each other are written at once.

        Raises:
          OSError: there is no room; the error names the file.
        """
        order = np.argsort(rows, kind="stable")
        block = np.empty((len(rows), *self._shape[1:]), self._dtype)
        block[...] = values[order]
        places = rows[order]
        ends = [*(np.flatnonzero(np.diff(places) != 1) + 1), len(places)]
        with named_if_full(self._path):
            for start, end in itertools.pairwise([0, *ends]):
                self._file.seek(self._start + int(places[start]) * self._row_bytes)
                self._file.write(block[start:end].data)


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a new `.npy` file; unlike NumPy's, an error for a full disk names the file.

    Raises:
      OSError: there is no room, for example.
    """
    with RowFile(path, array.dtype, array.shape) as file:
        for start in range(0, len(array), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(array)))
            file.write(rows, array[start : start + _ROWS])
