"""Opening and replacing files: what every reader and writer of this package shares."""

import math
import os
from pathlib import Path

import numpy as np

from l2rm_jax.errors import DataError, first_line


def open_array(path: Path) -> np.ndarray:
    """Memory-map an array file after checking that its size is the one its header promises.

    Args:
      path: a `.npy` file.

    Returns:
      A read-only array backed by the file; nothing but the header has been read.

    Raises:
      DataError: the file is missing, is not a `.npy` file, holds Python objects, or is truncated.
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
    except Exception as error:  # a header is a Python literal, and may fail in all its ways
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
    # A plain ndarray on the same map: slices of np.memmap carry a subclass nobody needs.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a killed run, never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_bytes(content)
    except OSError as error:  # of a full disk, which names no file
        unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    unfinished.replace(path)
