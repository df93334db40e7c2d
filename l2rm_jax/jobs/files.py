"""Write files and directories that appear only when they are complete."""

import contextlib
import itertools
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from l2rm_jax.errors import ConfigError, is_full
from l2rm_jax.jobs.full_disk import named_if_full

_FLAGS = {"directory": "out", "page": "html"}  # of the command line, by the kind of path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash it has its old content or all of the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_bytes(content)
    except OSError as error:  # a full disk, for example; that error names no file
        unfinished.unlink(missing_ok=True)
        size = f": found no room for {len(content):,} bytes" if is_full(error) else ""
        raise OSError(error.errno, f"{error.strerror}{size}", str(path)) from error
    unfinished.replace(path)


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file as `replace_file` does, with a newline after each line.

    Lone surrogates, which the name of a file may hold, are written as the bytes they stand for.
    """
    replace_file(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))


@contextlib.contextmanager
def new_file(path: Path, what: str = "file") -> Iterator[Path]:
    """Write a file that may not exist yet, and that appears only when it is complete.

    Args:
      path: the file.
      what: the kind of file, for the message.

    Yields:
      The empty file beside it that the caller fills; if the caller fails, it is removed.

    Raises:
      ConfigError: the file exists already.
      OSError: it cannot be written there; raised before the caller has done any work.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    check_new(path, what)
    unfinished.touch()
    try:
        with named_if_full(path):
            yield unfinished
        check_new(path, what)  # again, as the work may have taken hours
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Fill a directory that may not exist yet, and that appears only when it is complete.

    Yields:
      The empty directory beside it that the caller fills, without files of a killed process.

    Raises:
      ConfigError: the directory exists already.
    """
    check_new(path, "directory")
    unfinished = path.with_name(f"{path.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with named_if_full(unfinished):
        yield unfinished
    os.replace(unfinished, path)


def check_new(path: Path, what: str = "file") -> None:
    """Check that nothing would be overwritten; `what` is the kind of path, for the message.

    Raises:
      ConfigError: the path exists already.
    """
    if os.path.lexists(path):
        flag = _FLAGS.get(what)
        raise ConfigError(
            f"{path}: already exists, expected the name of a new {what}",
            hint=flag and f"--{flag}={shlex.quote(str(_free_name(path)))}",
        )


def _free_name(path: Path) -> Path:
    """A path that does not exist: `page-2.html` for `page.html`."""
    names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))
    return next(name for name in names if not os.path.lexists(name))


def remove_unfinished(directory: Path) -> None:
    """Remove files and directories that killed processes have left unfinished, there and below.

    Nobody may be writing there (`locked_directory`).
    """
    for path in [*directory.rglob("*.unfinished")]:
        # Network file systems keep files that are open, here or in a process that is just ending.
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
