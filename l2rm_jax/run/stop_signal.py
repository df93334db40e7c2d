"""SIGTERM and Ctrl-C (SIGINT): the requests of a scheduler or a person to stop a run."""

import concurrent.futures
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from l2rm_jax.devices.hosts import exit_now, is_single_host, on_any_host
from l2rm_jax.errors import StoppedError

POLL_SECONDS = 1  # interval at which waiting hosts ask each other for the signal
# A launcher may forward a Ctrl-C that the terminal has sent to this process too; the second signal
# then comes within this time, and is no second request.
SAME_REQUEST_SECONDS = 0.2
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Records SIGTERM and Ctrl-C within a `with` block instead of letting them end the process.

    Ctrl-C after an earlier signal ends the process at once.

    With several hosts, all must stop at the same place. They exchange the request in
    `is_requested`, `check` and `wait`, so every host must call these, and a signal to any host
    stops all. Outside the main thread, signals keep their previous handlers.

    Args:
      loss: returns what ending at once would lose, as the end of a sentence. It is called within
        the handler of a signal, so it must not wait for another thread.
    """

    def __init__(self, loss: Callable[[], str]) -> None:
        self._loss = loss
        self._number: int | None = None  # of the first signal
        self._time = 0.0  # of the first signal
        self._interruptible = False
        is_main_thread = threading.current_thread() is threading.main_thread()
        self._handled = SIGNALS if is_main_thread else ()

    def __enter__(self) -> "StopSignal":
        self._previous = {number: signal.signal(number, self._handle) for number in self._handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def is_requested(self) -> bool:
        """Whether any host has received a signal; every host must call this."""
        requested = on_any_host(self._number is not None)
        # A signal may have arrived during the exchange. What another host received is not known.
        if requested and self._number is None:
            self._number, self._time = signal.SIGTERM, time.monotonic()
        return requested

    def check(self) -> None:
        """Raise `StoppedError` if any host has received a signal; every host must call this."""
        if self.is_requested():
            raise StoppedError("stopped by a signal", self._number)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Block that may be abandoned at any point because it changes no state of the run.

        On a single host, a signal raises `StoppedError` in the middle of the block. Several hosts
        only check for a signal before the block.
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

    def _handle(self, number: int, _: object) -> None:
        if self._number is not None:
            if number == signal.SIGINT and time.monotonic() - self._time > SAME_REQUEST_SECONDS:
                exit_now(f"stopped at once; lost: {self._loss()}", 128 + number)
            return
        self._number, self._time = number, time.monotonic()
        if self._interruptible:
            self._interruptible = False  # a second signal must not interrupt the save that follows
            self.check()
        elif number == signal.SIGINT:
            _notify(f"stopping after this step, to save; Ctrl-C again loses {self._loss()}")


def _notify(text: str) -> None:
    """Write a line to standard error from the handler of a signal, past Python's buffers."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{text}\n".encode() if sys.stderr.isatty() else f"{text}\n".encode())
