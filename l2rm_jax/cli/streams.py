"""Set up standard output and standard error of the command line."""

import logging
import os
import select
import signal
import sys
from typing import TextIO

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
    logger, and this package's log does not reach those that they install later.
    """
    logging.basicConfig(handlers=[LogLines()], level=logging.WARNING, force=True)
    package = logging.getLogger("l2rm_jax")
    package.handlers, package.propagate = [LogLines()], False
    package.setLevel(logging.INFO)


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
