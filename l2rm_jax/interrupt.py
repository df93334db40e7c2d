"""Ctrl-C (SIGINT) ends the program with one line, whatever it is doing.

Python's own `KeyboardInterrupt` is not enough: raised within a callback of a library, it is printed
and lost, or aborts the process; and while a library computes, it is not raised at all.
"""

import atexit
import contextlib
import os
import shlex
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

STATUS = 128 + signal.SIGINT  # which a shell gives a process that the signal ended
GRACE_SECONDS = 2.0  # for the work to remove its unfinished files, once it is interrupted


class _State:
    """State that the handler and the watching thread share.

    Attributes:
      line: the line to end with.
      is_working: whether there is work that should be interrupted by an exception.
      is_ending: whether a signal has come.
      is_ended: whether the program writes the line itself.
    """

    line = "stopped by Ctrl-C"
    is_working = False
    is_ending = False
    is_ended = False


def handle_ctrl_c() -> None:
    """From now on, Ctrl-C ends this program; call it before libraries are imported.

    A program that ignores the signal, as shells start background jobs, keeps ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    again = shlex.join(["l2rm", *sys.argv[1:]])
    _State.line = f"stopped by Ctrl-C; nothing was written. Again: {again}"
    signal.signal(signal.SIGINT, _handle)
    os.register_at_fork(after_in_child=leave_ctrl_c)
    # The system's handler writes the signal's number there at once, even while the main thread,
    # where `_handle` is called, is within a library.
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=[read_end], daemon=True).start()


def leave_ctrl_c() -> None:
    """Leave Ctrl-C to Python again: in a forked process, and beside a pager."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)


def begin_work(line: str) -> None:
    """From now on, Ctrl-C first raises `KeyboardInterrupt`, so that the work can be cleaned up.

    Args:
      line: last line of the program, with the kept work and the next command.
    """
    _State.line, _State.is_working = line, True
    # While Python ends, nothing is left to stop; it would hand the signal back to the system, which
    # ends a process whose work is done without a word and with another status.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


def end_work() -> str:
    """The line to end with, after a `KeyboardInterrupt`; the caller writes it and ends."""
    _State.is_ended = True
    return _State.line


def _handle(_: int, frame: FrameType | None) -> None:
    if _State.is_ended:
        return
    if not _State.is_working or _State.is_ending or _is_importing(frame):
        _end()
    _State.is_ending = True
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported; an exception may then abort the process."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _watch(read_end: int) -> None:
    """End the program if it has not ended some moments after the signal."""
    while numbers := os.read(read_end, 64):
        # While a run trains, `StopSignal` handles the signal.
        if signal.SIGINT in numbers and signal.getsignal(signal.SIGINT) is _handle:
            time.sleep(GRACE_SECONDS)
            if not _State.is_ended:
                _end()


def _end() -> NoReturn:
    """Write the line past Python's buffers, whose locks may be held, and end."""
    _State.is_ended = True
    with contextlib.suppress(OSError):
        line = f"\n{_State.line}\n" if os.isatty(2) else f"{_State.line}\n"
        os.write(2, line.encode(errors="backslashreplace"))  # the name of a file may be no UTF-8
    os._exit(STATUS)
