"""Print lines of text, warnings, the table of epochs and progress bars.

Results go through the logger `l2rm_jax.results` to standard output, progress to standard error;
L2RM_PROGRESS=0 in the environment silences it. On a terminal, lines are at most
`WIDTH` columns long, a few words are coloured (unless NO_COLOR is set), and long work shows a bar.
Anywhere else, a line stays one line, and there are no control characters.
"""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TextIO

import jax
from rich.console import Console, ConsoleDimensions
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

_log = logging.getLogger(__name__)

WIDTH = 80  # longest line on a terminal; a narrower terminal has shorter ones
APPEAR_SECONDS = 2.0  # a bar appears once its work has taken this long
RATE_SECONDS = 120.0  # the rate is measured over this last part of the work
LINE_SECONDS = 30.0  # interval of the lines that replace a bar if there is no terminal


class _Screen(Console):
    """A console of at most `WIDTH` columns that wraps lines only if its stream is a terminal."""

    def __init__(self, stream: TextIO, *, is_notebook: bool = False):
        is_terminal = stream.isatty()
        super().__init__(
            file=stream,
            force_terminal=is_terminal,
            force_jupyter=is_notebook,
            soft_wrap=not (is_terminal or is_notebook),
            markup=False,
            emoji=False,
            highlight=False,
        )

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and rows of the terminal, as it is now."""
        columns, rows = super().size
        return ConsoleDimensions(min(columns, WIDTH), rows)

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is: a process that is killed would leave it hidden."""
        return False


class _ResultLines(logging.Handler):
    """Prints results on standard output, above the progress bar if one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        _print(record.msg, sys.stdout)


_results = logging.getLogger("l2rm_jax.results")
_results.setLevel(logging.INFO)
_results.propagate = False
_results.addHandler(_ResultLines())


def say(text: str | Text) -> None:
    """Log text as a result, which is printed to standard output unless logging is set otherwise."""
    _results.info(text)


def warn(message: str) -> None:
    """Log a warning as `say` logs a result."""
    _results.warning(_warning(message))


def _warning(message: str) -> Text:
    return Text.assemble(("warning:", "bold yellow"), f" {message}")


def _print(text: str | Text, stream: TextIO) -> None:
    screen = _Screen(stream)
    with screen.capture() as lines:
        screen.print(text)
    # While a bar is shown, rich replaces the streams by ones that write above the bar.
    stream.write(lines.get())
    stream.flush()


class LogLines(logging.Handler):
    """Prints the log as plain lines on standard error, `warning: ...` for warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        is_warning = record.levelno >= logging.WARNING
        _print(_warning(message) if is_warning else message, sys.stderr)


@contextlib.contextmanager
def unconfigured_root() -> Iterator[None]:
    """Leave the root logger as it is within a `with` block.

    absl, with which orbax logs, calls `logging.basicConfig` if the root logger has no handler. In
    the block it has one that does as Python does without any: warnings go to standard error.
    """
    root, last = logging.getLogger(), logging.lastResort
    if root.handlers or last is None:
        yield
        return
    root.addHandler(last)
    try:
        yield
    finally:
        root.removeHandler(last)


@contextlib.contextmanager
def stage_lines(work: str, stages: Sequence[str]) -> Iterator[Callable[[int], None]]:
    """Say which stage of some work begins: `judging, 2 of 5: scores`.

    The lines are logged where this package's log is shown, as in the command line. Elsewhere, they
    are printed to host 0's standard error, and nothing for work shorter than `APPEAR_SECONDS`.

    Yields:
      Function that says that a stage begins, by its place in `stages`.
    """
    if _log.isEnabledFor(logging.INFO):
        yield lambda stage: _log.info(_stage_line(work, stages, stage))
        return
    current, is_due = [""], threading.Event()

    def show() -> None:
        is_due.set()
        if current[0]:
            _print(current[0], sys.stderr)

    def say_stage(stage: int) -> None:
        current[0] = _stage_line(work, stages, stage)
        if is_due.is_set():
            _print(current[0], sys.stderr)

    with _later(show):
        yield say_stage


def _stage_line(work: str, stages: Sequence[str], stage: int) -> str:
    return f"{work}, {stage + 1} of {len(stages)}: {stages[stage]}"


def _shows_progress() -> bool:
    """Whether this is the only host, or host 0, and progress is not silenced."""
    if os.environ.get("L2RM_PROGRESS") == "0":
        return False
    # Asking for the host's index would start the devices, which a single host may not use.
    return not jax.distributed.is_initialized() or jax.process_index() == 0


class EpochTable:
    """The table of epochs: the names of the columns once, then one row an epoch.

    Columns that do not fit the terminal are left out, from the right.

    Args:
      epochs: number of epochs of the run, warm-up included.
      splits: whether the method splits the pairs (`Method.splits`).
      knows_truth: whether it is known which pairs are mismatched.
      moves_mass: whether the method rematches by transport (`Method.moves_mass`).
    """

    def __init__(self, epochs: int, *, splits: bool, knows_truth: bool, moves_mass: bool):
        columns: list[tuple[str, int, Callable[[Mapping], str]]] = [
            ("epoch", max(5, 2 * len(f"{epochs}") + 1), lambda row: f"{row['epoch']}/{epochs}"),
            ("time", 8, lambda row: clock(row["time"])),
            ("loss", 8, lambda row: _loss(row["loss"]) if "loss" in row else ""),
            ("rSum", 8, lambda row: f"{row['rsum']:.1f}"),
            ("", 1, lambda row: "*" if row["is_best"] else ""),
            ("i2t@1", 7, lambda row: f"{row['i2t_r1']:.1f}"),
            ("t2i@1", 7, lambda row: f"{row['t2i_r1']:.1f}"),
        ]
        if splits:
            columns.append(("matched", 10, _matched_share))
        if splits and knows_truth:
            columns.append(("right", 7, lambda row: _format(row, "split_precision", ".1%")))
        if moves_mass:
            columns.append(("moved", 7, lambda row: _format(row, "moved_mass", ".2f")))
        width = _Screen(sys.stdout).width if sys.stdout.isatty() else WIDTH
        used = [sum(size for _, size, _ in columns[:end]) for end in range(1, len(columns) + 1)]
        self._columns = [column for column, end in zip(columns, used, strict=True) if end <= width]
        self._is_named = False

    def lines(self, values: Mapping[str, Any], seconds: float) -> Text:
        """The row of an epoch; the first one has the names of the columns above it.

        Args:
          values: fields of the epoch's record in the log.
          seconds: time that the epoch took.
        """
        is_best = values["rsum"] >= values["best_rsum"]
        row = {**values, "time": seconds, "is_best": is_best}
        parts: list[Any] = []
        if not self._is_named:
            names = "".join(name.rjust(size) for name, size, _ in self._columns)
            parts.append((f"{names}\n", "dim"))
        self._is_named = True
        for name, size, cell in self._columns:
            is_bold = is_best and name in ("rSum", "")
            parts.append((cell(row).rjust(size), "bold" if is_bold else ""))
        text = Text.assemble(*parts)
        text.rstrip()
        return text


def _loss(value: float) -> str:
    """A loss in at most seven characters."""
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:.1e}"


def _matched_share(row: Mapping[str, Any]) -> str:
    """Share of the pairs that the split calls matched; the warm-up has no split."""
    if "matched" not in row:
        return "warm-up"
    return f"{row['matched'] / (row['matched'] + row['mismatched']):.1%}"


def _format(row: Mapping[str, Any], name: str, style: str) -> str:
    """A number of an epoch; empty if the epoch has none."""
    return format(row[name], style) if name in row else ""


def clock(seconds: float) -> str:
    """A time as minutes and seconds, `1:05`, or with hours, `2:01:05`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


@contextlib.contextmanager
def progress_bar(
    total: int, description: str, *, initial: int = 0, unit: str = "pairs"
) -> Iterator["_Bar"]:
    """Show progress on host 0's standard error: the work done, the rate and the remaining time.

    On a terminal and in a notebook with ipywidgets it is a bar, which appears after
    `APPEAR_SECONDS` and is gone when the work is done. Elsewhere it is a line of text every
    `LINE_SECONDS`, and nothing for shorter work.

    Args:
      total: size of the work.
      description: text in front of the bar.
      initial: size of the work that is done already.
      unit: name of the counted things.

    Yields:
      An object with `update(count)` for progress and `note(text)` to show a text.
    """
    bar = _Bar(total, description, initial, unit)
    with contextlib.ExitStack() as stack:
        if bar.is_drawn:
            stack.callback(bar.progress.stop)
            stack.enter_context(_later(bar.progress.start))
        yield bar


class _Bar:
    """Progress as a bar, or as lines of text; see `progress_bar`."""

    def __init__(self, total: int, description: str, initial: int, unit: str):
        is_notebook = Console().is_jupyter and find_spec("ipywidgets") is not None
        screen = _Screen(sys.stderr, is_notebook=is_notebook)
        self._numbers = (
            TextColumn("{task.completed:,}/{task.total:,} " + unit),
            _Rate(),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            *self._numbers,
            console=screen,
            expand=True,
            transient=True,
            refresh_per_second=4,
            speed_estimate_period=RATE_SECONDS,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._task = self.progress.add_task(description, total=total, completed=initial, note="")
        self.is_drawn = screen.is_interactive or is_notebook
        self._has_lines = _shows_progress() and not self.is_drawn
        self._next_line = time.monotonic() + LINE_SECONDS

    def update(self, count: int) -> None:
        """Add to the work that is done."""
        self.progress.advance(self._task, count)
        [task] = self.progress.tasks
        if self._has_lines and time.monotonic() >= self._next_line and not task.finished:
            self._next_line = time.monotonic() + LINE_SECONDS
            numbers = " ".join(str(column.render(task)) for column in self._numbers)
            _print(f"{task.description}: {numbers}".rstrip(), sys.stderr)

    def note(self, text: str) -> None:
        """Show a text after the numbers, from now on."""
        self.progress.update(self._task, note=text)

    @contextlib.contextmanager
    def paused(self, reason: str) -> Iterator[None]:
        """Say why there is no progress within a `with` block; the rate is measured again after it.

        Without a terminal, a line says so if the block takes longer than `APPEAR_SECONDS`.
        """
        [task] = self.progress.tasks
        note = task.fields["note"]
        self.note(reason)

        def say_reason() -> None:
            if self._has_lines:
                _print(f"{task.description}: {reason}", sys.stderr)

        try:
            with _later(say_reason):
                yield
        finally:
            self.progress.reset(self._task, completed=task.completed, note=note)


class _Rate(ProgressColumn):
    """Column of a progress bar: the rate of the last `RATE_SECONDS`."""

    def render(self, task: Task) -> Text:
        speed = task.speed or 0.0
        return Text(f"{speed:,.{0 if speed >= 10 else 2}f}/s" if speed else "-/s")


@contextlib.contextmanager
def _later(function: Callable[[], None]) -> Iterator[None]:
    """On host 0, call a function after `APPEAR_SECONDS`, unless the block has ended by then."""
    timer = threading.Timer(APPEAR_SECONDS, function)
    timer.daemon = True
    if _shows_progress():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()  # it may be calling the function just now
