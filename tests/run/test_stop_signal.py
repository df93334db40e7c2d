"""Work that SIGTERM and Ctrl-C interrupt or not; `test_resume.py` stops whole runs."""

import os
import signal
import sys
import threading
from concurrent.futures import Future

import pytest

from l2rm_jax import main
from l2rm_jax.cli import Mode
from l2rm_jax.errors import StoppedError
from l2rm_jax.run import stop_signal as stopping
from l2rm_jax.run.stop_signal import StopSignal


def test_hosts_stop_waiting_together(monkeypatch):
    """The other of two hosts has received the signal when they ask for the third time."""
    monkeypatch.setattr(stopping, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(stopping, "is_single_host", lambda: False)
    done, endless, asked = Future(), Future(), []
    done.set_result("found")

    def on_any_host(value: bool) -> bool:
        asked.append(value)
        return value or asked.count(False) == 3

    with StopSignal(str) as stop:
        monkeypatch.setattr(stopping, "on_any_host", lambda value: value)
        assert stop.wait(done) == "found"
        monkeypatch.setattr(stopping, "on_any_host", on_any_host)
        with pytest.raises(StoppedError):
            stop.wait(endless)
    assert asked == [True, False] * 3


def test_a_signal_that_reaches_another_host_first_is_the_same_request(monkeypatch):
    """A launcher sends Ctrl-C to every host; this one has heard of it from the other."""
    monkeypatch.setattr(stopping, "on_any_host", lambda value: True)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with StopSignal(str) as stop:
        assert stop.is_requested()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_requested()


def test_only_an_interruptible_block_is_interrupted():
    with StopSignal(str) as stop, pytest.raises(StoppedError), stop.interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    with StopSignal(str) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_requested()


def test_outside_the_main_thread_sigterm_is_left_alone():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with StopSignal(str):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def end_of_command(monkeypatch, mode) -> int:
    """Exit status of the command line whose mode `train` is `mode`."""
    monkeypatch.setattr(main, "MODES", [Mode("train", "", "", (), lambda command: mode())])
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        main.main([])
    return ended.value.code


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_command_line_with_its_status(monkeypatch, capsys, number, status):
    """A second one within a moment is taken for the same request."""

    def stopped() -> None:
        with StopSignal(str) as stop:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            with stop.interruptible():
                pytest.fail("the block was entered")

    assert end_of_command(monkeypatch, stopped) == status
    assert capsys.readouterr().err == "stopped by a signal\n"


def test_a_second_ctrl_c_ends_at_once(monkeypatch, capfd):
    def impatient() -> None:
        monkeypatch.setattr(stopping, "SAME_REQUEST_SECONDS", -1)
        with StopSignal(lambda: "the training after checkpoint 4"):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("went on")

    assert end_of_command(monkeypatch, impatient) == 130
    assert capfd.readouterr().err.splitlines() == [
        "stopping after this step, to save; Ctrl-C again loses the training after checkpoint 4",
        "stopped at once; lost: the training after checkpoint 4",
    ]


def test_ctrl_c_outside_training_ends_at_once(monkeypatch, capsys):
    # Where the tests run in the background, the signal is ignored until a handler is set.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = end_of_command(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert status == 130 and capsys.readouterr().err.startswith("stopped by Ctrl-C; ")
