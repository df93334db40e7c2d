"""Errors of a full disk: the file that was written is named, which Python does not do."""

import contextlib
import io
import os
import traceback
from collections.abc import Iterator
from pathlib import Path

from l2rm_jax.errors import is_full


@contextlib.contextmanager
def named_if_full(path: Path) -> Iterator[None]:
    """Name the file in an error of this `with` block for a full disk, which names none itself.

    Args:
      path: the file, or the directory whose files are written.

    Raises:
      OSError: there is no room, with the path of the file.
    """
    try:
        yield
    except OSError as error:
        is_named = error.filename is not None and error.filename2 is None  # two: of a copy
        if not is_full(error) or is_named:
            raise
        name = error.filename2 or (written_file(error) if path.is_dir() else None) or path
        raise OSError(error.errno, os.strerror(error.errno), str(name)) from error


def written_file(error: OSError) -> str | None:
    """Name the file that was being written when an error was raised, as far as Python knows it.

    The error of a write that finds the disk full has no name; the innermost function that holds a
    file open for writing does.
    """
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        for value in frame.f_locals.values():
            name, mode = getattr(value, "name", None), str(getattr(value, "mode", ""))
            if isinstance(value, io.IOBase) and isinstance(name, str) and set("wax+") & set(mode):
                return name
    return None
