"""Open `.npy` files and replace files safely; every reader and writer uses these two functions."""

import math
import os
from pathlib import Path

import numpy as np

from l2rm_jax.errors import DataError, first_line


def open_array(path: Path) -> np.ndarray:
    """Memory-map a `.npy` file after checking its size against its header.

    Args:
      path: a `.npy` file.

    Returns:
      A read-only array backed by the file. Only the header has been read.

    Raises:
      DataError: the file is missing, is not a `.npy` file, is truncated, or holds Python objects or
        no data.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = read_header(file)
            start = file.tell()
    except Exception as error:  # the header is a Python literal: parsing can raise anything
        raise DataError(f"{path}: not a .npy file of numbers ({first_line(error, 200)})") from error
    if dtype.hasobject:
        raise DataError(
            f"{path}: holds Python objects, which are never unpickled; expected numbers"
        )
    sizes = all(type(size) is int and size >= 0 for size in shape)  # a bool is an int too
    if dtype.kind not in "biufc" or not sizes:
        raise DataError(f"{path}: found {dtype} {list(shape)}, expected numbers")
    expected = start + math.prod(shape) * dtype.itemsize
    if size != expected:
        state = "truncated" if size < expected else "longer than its header says"
        raise DataError(
            f"{path}: {state}: found {size} bytes, expected {expected} for {dtype} {list(shape)}"
        )
    if 0 in shape:
        raise DataError(f"{path}: found no data, shape {list(shape)}; expected at least one row")
    # A plain ndarray on the same map: slices of an np.memmap would be np.memmap again.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash it has its old content or all of the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_bytes(content)
    except OSError as error:  # a full disk, for example; that error names no file
        unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    unfinished.replace(path)
