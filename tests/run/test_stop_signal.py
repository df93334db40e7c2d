"""What SIGTERM interrupts and what it does not; `test_resume.py` stops whole runs."""

import os
import signal
import threading
from concurrent.futures import Future

import pytest

from l2rm_jax.errors import StoppedError
from l2rm_jax.run import stop_signal as stopping
from l2rm_jax.run.stop_signal import StopSignal


def test_hosts_stop_waiting_together(monkeypatch):
    """Of two hosts, the other one has received the signal when they ask for the third time."""
    monkeypatch.setattr(stopping, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(stopping, "is_single_host", lambda: False)
    done, endless, asked = Future(), Future(), []
    done.set_result("found")

    def on_any_host(value: bool) -> bool:
        asked.append(value)
        return value or asked.count(False) == 3

    with StopSignal() as stop:
        monkeypatch.setattr(stopping, "on_any_host", lambda value: value)
        assert stop.wait(done) == "found"
        monkeypatch.setattr(stopping, "on_any_host", on_any_host)
        with pytest.raises(StoppedError):
            stop.wait(endless)
    assert asked == [True, False] * 3


def test_only_an_interruptible_block_is_interrupted():
    with StopSignal() as stop, pytest.raises(StoppedError), stop.interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_requested()


def test_outside_the_main_thread_sigterm_is_left_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with StopSignal():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
