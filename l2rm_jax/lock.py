"""One process at a time in the directory of a run."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from l2rm_jax.errors import ConfigError

LOCK_FILE = "lock"


@contextlib.contextmanager
def only_run_in(workdir: str | Path) -> Iterator[None]:
    """Holds `workdir`, created where missing; the system lets go of it however the process ends.

    Raises:
      ConfigError: another process holds it.
    """
    Path(workdir).mkdir(parents=True, exist_ok=True)
    lock = FileLock(Path(workdir) / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"{workdir}: another process trains in it; expected a directory of its own for each "
            "run, or to wait until that one has ended"
        ) from None
    try:
        yield
    finally:
        lock.release()
