"""Progress bars on the screen."""

import sys
from typing import Any, TextIO

import jax
from tqdm import tqdm

LINE_SECONDS = 30.0  # interval of progress lines if standard error is not a terminal


def progress_bar(total: int, description: str, *, initial: int = 0) -> tqdm:
    """Progress bar on host 0's standard error: counts pairs, and shows their rate and the ETA.

    Use it as a context manager, or call `close()`. Call `update(pairs)` for progress and
    `set_postfix(loss=...)` to show a value. If standard error is not a terminal, it prints a line
    of text every half minute, and nothing for work that takes less.

    Args:
      total: number of pairs.
      description: text in front of the bar.
      initial: pairs that are done already.
    """
    is_terminal = sys.stderr.isatty()
    return _Bar(
        total=total,
        initial=initial,
        desc=description,
        unit=" pairs",
        unit_scale=True,
        file=sys.stderr if is_terminal else _WholeLines(sys.stderr),
        mininterval=0.5 if is_terminal else LINE_SECONDS,
        delay=0 if is_terminal else LINE_SECONDS,
        dynamic_ncols=is_terminal,
        leave=not is_terminal,
        disable=jax.distributed.is_initialized() and jax.process_index() != 0,
    )


class _Bar(tqdm):
    """A bar whose postfix is shown at the next refresh, without forcing one."""

    def set_postfix(self, **values: Any) -> None:
        super().set_postfix(refresh=False, **values)


class _WholeLines:
    """A stream for tqdm that writes whole lines instead of carriage returns."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        if line := text.strip():
            self._stream.write(line + "\n")

    def flush(self) -> None:
        self._stream.flush()
