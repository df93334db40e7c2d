"""SIGTERM, the request to stop that schedulers send some time before they kill a run."""

import contextlib
import signal
import threading
from collections.abc import Iterator

import jax

from l2rm_jax.errors import StoppedError


class StopSignal:
    """Notices SIGTERM while it is entered, instead of dying of it.

    Of several hosts that run one program, none can stop by itself: there, and outside the main
    thread, SIGTERM does what it did before.

    Attributes:
      requested: whether the signal has come.
    """

    def __init__(self) -> None:
        self.requested = False
        self._interruptible = False
        self._notices = (
            threading.current_thread() is threading.main_thread() and jax.process_count() == 1
        )

    def __enter__(self) -> "StopSignal":
        if self._notices:
            self._before = signal.signal(signal.SIGTERM, self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        if self._notices:
            signal.signal(signal.SIGTERM, self._before)

    def check(self) -> None:
        """Raises `StoppedError` if the signal has come."""
        if self.requested:
            raise StoppedError("stopped by SIGTERM")

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that the signal ends at once, by a `StoppedError`: one that changes nothing."""
        self._interruptible = True
        try:
            self.check()
            yield
        finally:
            self._interruptible = False

    def _notice(self, *_: object) -> None:
        self.requested = True
        if self._interruptible:
            self._interruptible = False  # a second signal leaves in peace what saves the run
            self.check()
