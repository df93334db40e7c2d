"""Set up standard output and standard error of the command line."""

import logging
import os
import select
import signal
import sys
import warnings
from typing import TextIO

import jax

from l2rm_jax.console import LogLines

_READER_LEFT = 128 + getattr(signal, "SIGPIPE", 13)  # the status of other programs in a shell


def escape_characters() -> None:
    """Escape characters that the encoding of a stream does not have, such as \\xe9 in ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not a stream that replaces the system's
            stream.reconfigure(errors="backslashreplace")


def show_log() -> None:
    """Show this package's progress and the warnings of other libraries, each as one plain line.

    Handlers that libraries have installed while they were imported are removed from the root
    logger, and this package's log does not reach those that they install later. Of Python's
    warnings, the first one of each line of code is shown.
    """
    logging.basicConfig(handlers=[LogLines()], level=logging.WARNING, force=True)
    package = logging.getLogger("l2rm_jax")
    package.handlers, package.propagate = [LogLines()], False
    package.setLevel(logging.INFO)
    shown: set[tuple[str, int]] = set()

    def show(text: Warning | str, _: type, file: str, line: int, *__: object) -> None:
        if (file, line) not in shown:
            shown.add((file, line))
            logging.getLogger("py.warnings").warning("%s", _warning_line(str(text)))

    warnings.showwarning = show


def _warning_line(text: str) -> str:
    """The first line of a Python warning; one about JAX's cache of programs names its directory."""
    first = next(iter(text.splitlines()), "")
    is_of_cache = "persistent compilation cache" in first
    directory = f"{jax.config.jax_compilation_cache_dir}: "
    return directory * is_of_cache + first


def exit_if_reader_left(error: OSError) -> None:
    """End this process without a word if nobody reads its output any more, as after `| head`.

    Args:
      error: error of the work; a broken pipe may come from the output, or from a worker.
    """
    if isinstance(error, BrokenPipeError) and any(map(_has_no_reader, (sys.stdout, sys.stderr))):
        os._exit(_READER_LEFT)  # Python's end would write the rest of the output


def _has_no_reader(stream: TextIO) -> bool:
    """Whether a stream is a pipe whose other end is closed."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return bool(poll.poll(0))  # without asked events, only errors and the end are reported
    except (OSError, ValueError, AttributeError):  # not a stream of the system, or no `poll`
        return False
