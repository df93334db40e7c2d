"""Open arrays, write small ones atomically, and list files; every reader uses these functions."""

import contextlib
import io
import logging
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath

import numpy as np

from l2rm_jax.errors import DataError, first_line
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.regular_files import check_regular, refuse_other_kinds

_log = logging.getLogger(__name__)
# Folders of macOS, Synology, Linux and Windows, in small letters.
_SYSTEM = {"__macosx", "@eadir", "lost+found", "$recycle.bin", "system volume information"}


def open_array(path: Path) -> np.ndarray:
    """Memory-map a `.npy` file after checking its size against its header.

    Returns:
      A read-only array backed by the file. Only the header has been read.

    Raises:
      DataError: the file is missing, is not a `.npy` file, is truncated, or holds Python objects or
        no data.
    """
    check_regular(path)
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
    if dtype.kind == "V" and dtype.names is None:  # as np.save writes the types of ml_dtypes
        raise DataError(
            f"{path}: found {dtype} {list(shape)}, such as bfloat16, which NumPy cannot read; "
            "expected float32: save array.astype(np.float32)"
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


def check_form(name: str | Path, array: np.ndarray, is_valid: bool, expected: str) -> None:
    """Raise `DataError` with the dtype and shape of an array unless `is_valid`."""
    if not is_valid:
        raise DataError(f"{name}: found {array.dtype} {list(array.shape)}, expected {expected}")


def check_entries(
    name: str | Path, values: np.ndarray, are_valid: np.ndarray, expected: str
) -> None:
    """Raise `DataError` if entries of a vector are invalid; lists each of them."""
    wrong = np.flatnonzero(~are_valid)
    if len(wrong):
        raise DataError(
            *(f"{name}: entry {row}: found {values[row]}, expected {expected}" for row in wrong)
        )


@contextlib.contextmanager
def open_arrays(path: str | Path, what: str, hint: str) -> Iterator[Mapping[str, np.ndarray]]:
    """Open the arrays of a `.npz` file that a run keeps.

    Args:
      path: the file.
      what: the expected content, for the message: "a judgement of pairs".
      hint: the remedy for a damaged file, as the end of the message.

    Raises:
      DataError: the file is missing or damaged, or a requested array is missing.
    """
    refuse_other_kinds(path)
    try:
        # NumPy leaves a damaged file open that it has opened itself.
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            yield file
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not {what} ({type(error).__name__}); {hint}") from error


def replace_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a `.npz` file as `replace_file` does."""
    content = io.BytesIO()
    np.savez(content, **arrays)
    replace_file(path, content.getvalue())


def is_hidden(name: str | PurePath) -> bool:
    """Whether programs hide a path: a part begins with a dot, or is a folder of a system."""
    parts = PurePath(name).parts
    return any(part.casefold() in _SYSTEM or (part[0] == "." and part != "..") for part in parts)


def visible_files(directory: Path) -> list[Path]:
    """List the files of a directory and those below it without hidden ones, sorted."""
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    hidden = [file for file in files if is_hidden(file.relative_to(directory))]
    if hidden:
        _log.info("hidden files are not read: %s and %d more", hidden[0], len(hidden) - 1)
    left_out = set(hidden)
    return [file for file in files if file not in left_out]


def file_states(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Path, bytes and time of the last change of files that work in progress depends on."""
    states = [(file, file.stat()) for file in files]
    return [(str(file.absolute()), each.st_size, each.st_mtime_ns) for file, each in states]


def replace_array(path: Path, array: np.ndarray) -> None:
    """Write a small array to a `.npy` file as `replace_file` does."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    replace_file(path, content.getvalue())
