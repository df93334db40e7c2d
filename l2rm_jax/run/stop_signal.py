"""SIGTERM, the request to stop that schedulers send some time before they kill a run."""

import concurrent.futures
import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from l2rm_jax.devices.hosts import is_single_host, on_any_host
from l2rm_jax.errors import StoppedError

POLL_SECONDS = 1  # while they wait, how often they ask each other


class StopSignal:
    """Notices SIGTERM while it is entered, instead of dying of it.

    Of several hosts that run one program none can stop by itself: all stop where they ask each
    other (`is_requested`, `check`), whichever of them the signal has come to. Outside the main thread,
    SIGTERM does what it did before.
    """

    def __init__(self) -> None:
        self._requested = False
        self._interruptible = False
        self._notices = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "StopSignal":
        if self._notices:
            self._before = signal.signal(signal.SIGTERM, self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        if self._notices:
            signal.signal(signal.SIGTERM, self._before)

    def is_requested(self) -> bool:
        """Whether the signal has come, to any host; every host must ask here."""
        agreed = on_any_host(self._requested)
        if agreed:  # the signal may have come meanwhile, which must not be forgotten
            self._requested = True
        return agreed

    def check(self) -> None:
        """Raises `StoppedError` if the signal has come, to any host; every host must ask here."""
        if self.is_requested():
            raise StoppedError("stopped by SIGTERM")

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """A block that changes nothing, which the signal ends at once by a `StoppedError`; on
        several hosts, it keeps them from entering it."""
        self._interruptible = is_single_host()
        try:
            self.check()
            yield
        finally:
            self._interruptible = False

    def wait(self, work: Future) -> Any:
        """What `work` of this host returns, a thread that changes nothing. The signal, to any host,
        ends the wait by a `StoppedError`; every host must wait here, and all leave together."""
        if is_single_host():
            with self.interruptible():
                return work.result()
        while on_any_host(not work.done()):
            self.check()
            concurrent.futures.wait([work], timeout=POLL_SECONDS)
        return work.result()

    def _notice(self, *_: object) -> None:
        self._requested = True
        if self._interruptible:
            self._interruptible = False  # a second signal leaves in peace what saves the run
            self.check()
