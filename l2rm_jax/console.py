"""What a person sees of a command at work: progress bars."""

import sys
from typing import Any, TextIO

import jax
from tqdm import tqdm

QUIET_SECONDS = 30.0  # between two lines of a bar away from a terminal


def progress_bar(total: int, description: str, *, initial: int = 0) -> tqdm:
    """A bar on the first host's standard error: counts pairs and shows their rate and the ETA.

    Call `update(pairs)`, `set_postfix(loss=...)` where the loss is at hand, and `close()`, or use
    it as a context. Away from a terminal it prints a plain line every half minute, so nothing
    for what takes less.
    """
    terminal = sys.stderr.isatty()
    return _Bar(
        total=total,
        initial=initial,
        desc=description,
        unit=" pairs",
        unit_scale=True,
        file=sys.stderr if terminal else _PlainLines(sys.stderr),
        mininterval=0.5 if terminal else QUIET_SECONDS,
        delay=0 if terminal else QUIET_SECONDS,
        dynamic_ncols=terminal,
        leave=not terminal,
        disable=jax.process_index() != 0,
    )


class _Bar(tqdm):
    """A bar whose postfix waits for the next refresh instead of forcing one."""

    def set_postfix(self, **values: Any) -> None:
        super().set_postfix(refresh=False, **values)


class _PlainLines:
    """A stream for tqdm that turns its carriage returns into whole lines."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        if line := text.strip():
            self._stream.write(line + "\n")

    def flush(self) -> None:
        self._stream.flush()
