"""Read regular files only, up to a size: a device never ends, and a FIFO waits for its writer.

The files below /proc call themselves regular, but some wait for the system to write.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from l2rm_jax.errors import DataError

# Most bytes of a file that is read as a whole, by its content.
PICTURE, JSON, TEXT = 1 << 28, 1 << 31, 1 << 34
_SYSTEM = "/proc"
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def check_regular(path: str | Path) -> None:
    """Check that a path is a regular file, or a link to one, without opening it.

    Raises:
      DataError: it is something else, or there is no such file.
    """
    try:
        state = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        raise _missing(path, error) from error
    _check_state(path, state)


def refuse_other_kinds(path: str | Path) -> None:
    """Check a path as `check_regular` does, unless there is no such file.

    Raises:
      DataError: it is no regular file.
    """
    if os.path.exists(path):
        check_regular(path)


def has_file(path: str | Path) -> bool:
    """Return whether there is a file, or a link to one; of another kind, it is not absent.

    Raises:
      DataError: it is no regular file.
    """
    refuse_other_kinds(path)
    return os.path.exists(path)


def read_regular(path: str | Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises:
      DataError: it is something else or longer, there is no such file, or it cannot be read.
    """
    check_regular(path)
    try:
        # A FIFO without a writer is opened at once so.
        place = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        raise _missing(path, error) from error
    try:
        state = os.fstat(place)
        _check_state(path, state)
        if state.st_size > most:
            raise DataError(f"{path}: found {state.st_size:,} bytes, expected at most {most:,}")
        with open(place, "rb", closefd=False) as file:
            return file.read(state.st_size)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(place)


def parse_json(content: bytes | str) -> Any:
    """Parse JSON; content that is nested too deeply is a `ValueError`, as other damage is."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _check_state(path: str | Path, state: os.stat_result) -> None:
    kind = _KINDS.get(stat.S_IFMT(state.st_mode), "something else")
    if stat.S_ISREG(state.st_mode):
        if state.st_size or not os.path.exists(_SYSTEM) or state.st_dev != os.stat(_SYSTEM).st_dev:
            return
        kind = f"a file of {_SYSTEM}"
    raise DataError(f"{path}: found {kind}, expected a file")


def _missing(path: str | Path, error: OSError | ValueError) -> DataError:
    """The error for a path that cannot be opened; a name that the system refuses is no file."""
    if isinstance(error, PermissionError):
        return DataError(f"{path}: cannot be read: {error.strerror}")
    if isinstance(error, OSError) and error.strerror and not isinstance(error, FileNotFoundError):
        return DataError(f"{path}: no such file ({error.strerror})")
    return DataError(f"{path}: no such file")
