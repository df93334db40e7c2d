"""Write and read `.npy` files so that a full disk, or a file cut meanwhile, is an error by name.

Both would end a process that uses a memory map by the signal SIGBUS.
"""

import itertools
import math
import mmap
import os
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Int, Shaped

from l2rm_jax.errors import DataError, is_full
from l2rm_jax.jobs.full_disk import named_if_full

T = TypeVar("T")
_ROWS = 4096  # rows of an array that are written at once


class RowFile:
    """A new `.npy` file whose rows are written in any order; use it as a context manager.

    It is not memory-mapped: where the disk is full, writing to a map ends the process with a
    signal, and writing to a file raises an error.

    Args:
      path: the file.
      dtype: type of the numbers.
      shape: shape of the array; rows that are never written are zeros.

    Raises:
      OSError: there is no room for all rows, for example; names the file and its bytes.
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
            self._reserve(self._start + shape[0] * self._row_bytes)

    def _reserve(self, size: int) -> None:
        """Have the disk keep room for the whole file, before hours of work are to be written."""
        try:
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError as error:  # others: a file system or a device that keeps no room
            if is_full(error):
                self._file.close()
                reason = f"{error.strerror}: found no room for {size:,} bytes"
                raise OSError(error.errno, reason, str(self._path)) from error

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


def still_whole(array: T) -> T:
    """Return an array before a part of it is read; if it is mapped from a file, that is whole.

    Raises:
      DataError: the file has become shorter since it was opened.
    """
    base, name = array, "a mapped array"
    while isinstance(base, np.ndarray):
        name, base = getattr(base, "filename", name), base.base
    if isinstance(base, mmap.mmap) and (size := base.size()) < len(base):
        raise DataError(
            f"{name}: found {size:,} bytes, expected {len(base):,}, as when it was opened: the "
            "file was changed meanwhile; write it again, and run the same command"
        )
    return array


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a new `.npy` file; unlike NumPy's, an error for a full disk names the file.

    Raises:
      OSError: there is no room, for example.
    """
    with RowFile(path, array.dtype, array.shape) as file:
        for start in range(0, len(array), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(array)))
            file.write(rows, array[start : start + _ROWS])
