"""The lock of a work directory: only one process at a time trains in it."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from l2rm_jax.errors import ConfigError

LOCK_FILE = "lock"

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def lock_workdir(workdir: str | Path) -> Iterator[None]:
    """Hold the lock of an existing work directory within a `with` block.

    The system releases the lock when the process ends in any way. On a file system without locks,
    a warning is logged and the run continues unlocked.

    Raises:
      ConfigError: another process holds the lock.
    """
    path = Path(workdir) / LOCK_FILE
    lock = FileLock(path, fallback_to_soft=False)  # a killed process would leave a soft lock behind
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"{workdir}: another process trains in it; expected a directory of its own for "
            f"each run. If that process was on a machine that is gone, remove {path}",
            hint=f"--workdir={Path(workdir)}-2",
        ) from None
    except OSError as error:
        _log.warning("%s: no lock (%s); let no second run use this directory", path, error)
    try:
        yield
    finally:
        lock.release()
