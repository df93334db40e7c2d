"""SIGTERM: the request to stop that schedulers send some time before they kill a run."""

import concurrent.futures
import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from l2rm_jax.devices.hosts import is_single_host, on_any_host
from l2rm_jax.errors import StoppedError

POLL_SECONDS = 1  # interval at which waiting hosts ask each other for the signal


class StopSignal:
    """Records SIGTERM within a `with` block instead of letting it kill the process.

    With several hosts, all must stop at the same place. They exchange the request in
    `is_requested`, `check` and `wait`, so every host must call these, and a signal to any host
    stops all. Outside the main thread, SIGTERM keeps its previous handler.
    """

    def __init__(self) -> None:
        self._requested = False
        self._interruptible = False
        self._is_main_thread = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> "StopSignal":
        if self._is_main_thread:
            self._previous = signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_main_thread:
            signal.signal(signal.SIGTERM, self._previous)

    def is_requested(self) -> bool:
        """Whether any host has received the signal; every host must call this."""
        requested = on_any_host(self._requested)
        if requested:  # never reset it: the signal may have arrived during the exchange
            self._requested = True
        return requested

    def check(self) -> None:
        """Raise `StoppedError` if any host has received the signal; every host must call this."""
        if self.is_requested():
            raise StoppedError("stopped by SIGTERM")

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Block that may be abandoned at any point because it changes no state of the run.

        On a single host, the signal raises `StoppedError` in the middle of the block. Several
        hosts only check for the signal before the block.
        """
        self._interruptible = is_single_host()
        try:
            self.check()
            yield
        finally:
            self._interruptible = False

    def wait(self, work: Future) -> Any:
        """Wait for `work`, a thread that changes no state of the run, and return its result.

        A signal to any host raises `StoppedError` on all of them; the threads run on unattended.
        Every host must call this; all return or raise together.
        """
        if is_single_host():
            with self.interruptible():
                return work.result()
        while on_any_host(not work.done()):
            self.check()
            concurrent.futures.wait([work], timeout=POLL_SECONDS)
        return work.result()

    def _handle(self, *_: object) -> None:
        self._requested = True
        if self._interruptible:
            self._interruptible = False  # a second signal must not interrupt the save that follows
            self.check()
