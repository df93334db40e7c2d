"""Lines, the table of epochs and progress bars, on a terminal and in files."""

import io
import logging
import os
import pty
import re
import select
import sys
import time

import pytest

from l2rm_jax import console
from l2rm_jax.console import EpochTable, progress_bar

EPOCH = {"epoch": 9, "loss": 2.914, "rsum": 61.3, "best_rsum": 240.2, "i2t_r1": 6.0, "t2i_r1": 4.8}
SPLIT = {"matched": 587, "mismatched": 413, "split_precision": 0.912, "moved_mass": 0.1}
LONG = "the learned cost is flat (spread 0.01): " + "words that go on and on, " * 9


class Terminal:
    """A terminal of some width as both standard streams."""

    def __init__(self, monkeypatch, columns: int):
        self._reader, writer = pty.openpty()
        self.file = os.fdopen(writer, "w")
        monkeypatch.setattr(sys, "stdout", self.file)
        monkeypatch.setattr(sys, "stderr", self.file)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.delenv("NO_COLOR", raising=False)

    def sent(self) -> str:
        """Return the text written since the last call."""
        text = b""
        while select.select([self._reader], [], [], 0.05)[0]:
            text += os.read(self._reader, 1 << 16)
        return text.decode()

    def close(self) -> None:
        self.file.close()
        os.close(self._reader)


@pytest.fixture
def open_terminal(monkeypatch):
    """Return a function that opens a terminal with a number of columns."""
    terminals = []

    def open_one(columns: int = 80) -> Terminal:
        terminals.append(Terminal(monkeypatch, columns))
        return terminals[-1]

    yield open_one
    monkeypatch.undo()
    for terminal in terminals:
        terminal.close()


def drawn(sent: str) -> list[str]:
    """The texts between ends of lines and returns to their start, without control characters."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", sent))


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(console, "APPEAR_SECONDS", 0.01)
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)


def use_files(monkeypatch) -> tuple[io.StringIO, io.StringIO]:
    """Files as the two standard streams."""
    streams = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    monkeypatch.setenv("FORCE_COLOR", "1")  # means terminals alone
    return streams


def wait_for(bar, text: str, terminal: Terminal) -> str:
    """Advance a bar until the terminal shows a text on it."""
    sent, limit = "", time.monotonic() + 20
    while text not in sent and time.monotonic() < limit:
        bar.update(1)
        time.sleep(0.02)
        console.say("above")
        sent += terminal.sent()
    assert text in sent
    return sent


@pytest.mark.parametrize("columns", [40, 80])
def test_a_bar_on_a_terminal_appears_and_goes(open_terminal, fast, columns):
    terminal = open_terminal(columns)
    console.say("before")
    with progress_bar(40_000, "epoch 2", initial=10_000) as bar:
        bar.note("loss 0.25")
        sent = terminal.sent() + wait_for(bar, "epoch 2", terminal)
    console.say("after")
    sent += terminal.sent()
    assert sent.startswith("before\r\n") and sent.endswith("\x1b[2Kafter\r\n")
    assert max(map(len, drawn(sent))) <= min(columns, 80)
    if columns >= 80:
        assert "/40,000 pairs" in sent and "loss 0.25" in sent


def test_short_work_shows_no_bar(open_terminal):
    terminal = open_terminal()
    with progress_bar(400, "epoch 2") as bar:
        bar.update(400)
    console.say("after")
    assert terminal.sent() == "after\r\n"


def test_a_bar_without_a_terminal_prints_lines(monkeypatch, fast):
    files = use_files(monkeypatch)
    with progress_bar(400, "epoch 2", initial=100, unit="rows") as bar:
        for _ in range(3):
            bar.update(100)
            bar.note("loss 0.25")
            time.sleep(0.001)
    first, second = files[1].getvalue().splitlines()
    assert "epoch 2" in first and "200/400" in first
    assert "300/400" in second and "loss 0.25" in second
    assert files[0].getvalue() == "" and "\r" not in files[1].getvalue()


def test_a_pause_is_named_and_the_rate_starts_anew(monkeypatch, fast):
    files = use_files(monkeypatch)
    with progress_bar(1000, "epoch 2", unit="rows") as bar:
        bar.update(1)
        with bar.paused("compiling"):
            time.sleep(0.2)  # five rows a second so far
        for _ in range(3):
            time.sleep(0.001)
            bar.update(100)
    lines = files[1].getvalue().splitlines()
    assert any("compiling" in line for line in lines)
    assert float(re.search(r"([\d.,]+)/s", lines[-1])[1].replace(",", "")) > 1000


def test_other_hosts_show_no_progress(monkeypatch, fast):
    files = use_files(monkeypatch)
    monkeypatch.setattr(console.jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(console.jax, "process_index", lambda: 1)
    with console.stage_lines("judging", ["groups"]) as say:
        say(0)
        time.sleep(0.05)
    with progress_bar(400, "epoch 2") as bar:
        bar.update(200)
    assert files[1].getvalue() == ""


def test_progress_can_be_silenced(monkeypatch, fast):
    files = use_files(monkeypatch)
    monkeypatch.setenv("L2RM_PROGRESS", "0")
    with console.stage_lines("judging", ["groups"]) as say, progress_bar(400, "epoch 2") as bar:
        say(0)
        time.sleep(0.05)
        bar.update(200)
    assert files[1].getvalue() == ""


def test_results_go_through_logging(monkeypatch):
    files = use_files(monkeypatch)
    logger = logging.getLogger("l2rm_jax.results")
    console.say("rSum 300")
    monkeypatch.setattr(logger, "disabled", True)
    console.warn("too few pairs")
    assert files[0].getvalue() == "rSum 300\n"


# Warnings and the log


def test_stages_of_long_work_are_printed_where_nothing_logs_them(monkeypatch, fast):
    files = use_files(monkeypatch)
    with console.stage_lines("judging", ["groups", "scores"]) as say:
        say(0)
        while not files[1].getvalue():
            time.sleep(0.01)
        say(1)
    assert files[1].getvalue() == "judging, 1 of 2: groups\njudging, 2 of 2: scores\n"
    assert files[0].getvalue() == ""


def test_the_command_line_shows_stages_once_and_at_once(monkeypatch, fast, caplog):
    files = use_files(monkeypatch)
    with (
        caplog.at_level(logging.INFO, "l2rm_jax"),
        console.stage_lines("judging", ["groups", "scores"]) as say,
    ):
        say(0)
        say(1)
        time.sleep(0.05)
    assert caplog.messages == ["judging, 1 of 2: groups", "judging, 2 of 2: scores"]
    assert files[1].getvalue() == ""


def test_a_warning_is_wrapped_on_a_terminal_and_one_line_elsewhere(monkeypatch, open_terminal):
    files = use_files(monkeypatch)
    console.warn(LONG)
    assert files[0].getvalue() == f"warning: {LONG}\n"
    terminal = open_terminal()
    console.warn(LONG)
    sent = terminal.sent()
    lines = drawn(sent)
    assert "\x1b[1;33mwarning:\x1b[0m" in sent and max(map(len, lines)) <= 80
    assert " ".join(lines).split() == ["warning:", *LONG.split()]
    monkeypatch.setenv("NO_COLOR", "1")
    console.warn("")
    assert "33m" not in terminal.sent()


def test_the_log_is_plain_text_on_standard_error(monkeypatch):
    files = use_files(monkeypatch)
    logger = logging.getLogger("l2rm_jax_test")
    logger.setLevel(logging.INFO)
    logger.addHandler(console.LogLines())
    logger.info("waiting for %d hosts", 2)
    logger.warning("no lock")
    assert files[1].getvalue() == "waiting for 2 hosts\nwarning: no lock\n"
    assert files[0].getvalue() == ""


# The table of epochs


def rows(*epochs: dict, **columns: bool) -> list[str]:
    table = EpochTable(14, **columns)
    return [line for values in epochs for line in table.lines(values, 52.3).plain.splitlines()]


ALL = {"splits": True, "knows_truth": True, "moves_mass": True}


def test_a_row_an_epoch_below_the_names():
    best = {**EPOCH, "epoch": 10, "rsum": 242.9, "best_rsum": 242.9}
    names, first, second = (line.split() for line in rows(EPOCH, {**best, **SPLIT}, **ALL))
    values = ["2.914", "61.3", "6.0", "4.8"]
    assert len(names) == len(second) == 9 and first[2:6] == values and first[0] == "9/14"
    assert (
        second[0] == "10/14" and second[3] == "242.9*" and second[6:] == ["58.7%", "91.2%", "0.10"]
    )
