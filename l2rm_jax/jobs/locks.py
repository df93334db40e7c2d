"""Lock directories and files against other processes."""

import contextlib
import glob
import logging
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from l2rm_jax.errors import ConfigError

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5  # longer than a process holds a lock while it only looks at the others


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
    """Hold a lock file; a process that dies loses its lock.

    The file is removed at the end, unless processes wait for it as long as it takes.

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
        if timeout >= 0:  # else a process that waits would get a file that is gone
            with contextlib.suppress(OSError):  # Windows removes the file when it is released
                path.unlink()
        lock.release()
