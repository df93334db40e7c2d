"""Open arrays and write files safely; every reader and writer uses these functions."""

import contextlib
import glob
import io
import itertools
import json
import logging
import math
import os
import shlex
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from l2rm_jax.data.full_disk import is_full, named_if_full
from l2rm_jax.data.regular_files import refuse_other_kinds
from l2rm_jax.errors import ConfigError, DataError, L2RMError, first_line

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5  # longer than a process holds a lock while it only looks at the others
# Folders of macOS, Synology, Linux and Windows, in small letters.
_SYSTEM = {"__macosx", "@eadir", "lost+found", "$recycle.bin", "system volume information"}
_FLAGS = {"directory": "out", "page": "html"}  # of the command line, by the kind of path


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


@contextlib.contextmanager
def removed_if_refused(partial: Path, is_new: bool) -> Iterator[None]:
    """Remove the directory of work, if it is new, where an error of this library ends the block."""
    try:
        yield
    except L2RMError:
        if is_new:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def check_work(file: Path, identity: Mapping[str, Any], what: str) -> None:
    """Check that work in progress, if there is any, is of the same command.

    Args:
      file: where the identity of the work is kept, in a directory of `NAME.partial`.
      identity: all that the result depends on.
      what: the kind of work, for the message: "import".

    Raises:
      ConfigError: it is of another command; the message names the differences.
    """
    now = json.loads(json.dumps(identity))
    try:
        known = json.loads(file.read_bytes()) if file.exists() else now
    except ValueError:
        known = {}
    if names := [name for name in now if known.get(name) != now[name]]:
        raise other_work_error(file.parent.parent, what, f"it differs in {', '.join(names)}")


def claim_work(file: Path, identity: Mapping[str, Any], what: str) -> None:
    """As `check_work`; then keep the identity, so that no other command continues the work."""
    check_work(file, identity, what)
    replace_file(file, json.dumps(identity).encode())


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


def other_work_error(partial: Path, what: str, how: str) -> ConfigError:
    """The error that a directory holds work in progress of another command."""
    return ConfigError(
        f"{partial}: holds another {what} in progress ({how}), expected the same command again, "
        "or another --out",
        hint=f"rm -r {partial}",
    )


@contextlib.contextmanager
def locked_directory(path: Path, use: str, *, share: int | None = None) -> Iterator[None]:
    """Hold the lock of a directory; a process that dies loses its lock.

    The lock is a file beside the directory, `NAME.lock`, or `NAME.share-2.lock` of the second
    share, and is removed at the end.

    Args:
      path: the directory.
      use: what another process that holds the lock does with it, for the message: "imports into".
      share: number of the share of the work; several processes may each hold another share.

    Raises:
      ConfigError: another process holds this share, or the whole directory; or, without a share,
        any of them.
    """
    whole = path.with_name(f"{path.name}.lock")
    own = whole.with_suffix(f".share-{share}.lock") if share else whole
    name = f"{path}, share {share}" if share else path
    with locked_file(own, use, name=name, timeout=_LOOK_SECONDS):
        others = path.parent.glob(f"{glob.escape(path.name)}.share-*.lock")
        for other in [whole] if share else sorted(others):
            if other.exists():
                with locked_file(other, use, name=path, timeout=_LOOK_SECONDS if share else 0.0):
                    pass
        yield


@contextlib.contextmanager
def locked_file(
    path: Path, use: str, *, name: str | Path | None = None, timeout: float = 0.0
) -> Iterator[None]:
    """Hold a lock file, which is removed at the end; a process that dies loses its lock.

    Args:
      path: the file.
      use: what another process that holds the lock does with it, for the message: "copies into".
      name: name of the locked work for the message; None: the file.
      timeout: seconds to wait for that process; a negative number: as long as it takes.

    Raises:
      ConfigError: another process holds the lock.
      OSError: the file system has no locks.
    """
    # A process that dies would leave a soft lock behind.
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if timeout < 0:
            _log.info("%s: waiting while another process %s it", path, use)
        try:
            lock.acquire(timeout)
        except Timeout:
            raise ConfigError(f"{name or path}: another process {use} it") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes the file when it is released
            path.unlink()
        lock.release()


def remove_unfinished(directory: Path) -> None:
    """Remove the files that killed processes have left unfinished, there and in directories below.

    Nobody may be writing there (`locked_directory`).
    """
    for file in directory.rglob("*.unfinished"):
        file.unlink()


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


def replace_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file as `replace_file` does, with a newline after each line.

    Lone surrogates, which the name of a file may hold, are written as the bytes they stand for.
    """
    replace_file(path, "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))


def replace_array(path: Path, array: np.ndarray) -> None:
    """Write a small array to a `.npy` file as `replace_file` does."""
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    replace_file(path, content.getvalue())


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
