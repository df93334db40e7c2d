"""Progress bars on a terminal and in files."""

import io
import sys

from l2rm_jax import console
from l2rm_jax.console import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_bar() -> None:
    with progress_bar(400, "epoch 2", initial=100) as bar:
        for _ in range(3):
            bar.update(100)
            bar.set_postfix(loss="0.25")


def test_bar_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(console.tqdm, "monitor_interval", 0)
    with progress_bar(400, "epoch 2", initial=100) as bar:
        bar.update(300)
        bar.set_postfix(loss="0.25")
        bar.refresh()
    shown = sys.stderr.getvalue()
    assert "\r" in shown
    for part in ("epoch 2: 100%", "400/400", " pairs/s", "loss=0.25"):
        assert part in shown


def test_bar_without_a_terminal_prints_lines(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    run_bar()
    shown = sys.stderr.getvalue()
    assert "\r" not in shown
    lines = shown.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("epoch 2: ") for line in lines)
    assert "400/400" in lines[-1] and "loss=0.25" in lines[-1]


def test_short_work_without_a_terminal_prints_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    run_bar()
    assert sys.stderr.getvalue() == ""
