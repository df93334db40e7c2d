"""Run a reader on untrusted input with limited time and memory, and without side effects."""

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from l2rm_jax.errors import L2RMError

CPU_SECONDS = 20.0  # processor time of one input
WALL_SECONDS = 120.0
MEMORY_BYTES = 1 << 30  # beyond the memory in use before
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "shutil.rmtree"),
)


class Watch:
    """An audit hook that records writes and executions in one thread while it is armed.

    Python cannot remove audit hooks, so there is a single one.
    """

    def __init__(self) -> None:
        self.armed, self.seen = 0, []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple) -> None:
        if self.armed != threading.get_ident():
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if writes or event in FORBIDDEN:
            self.seen.append((event, str(arguments)[:200]))


WATCH = Watch()


def _too_long(*_: object) -> None:
    raise RuntimeError("hangs")


@contextlib.contextmanager
def confined() -> Iterator[None]:
    """Limit the time and memory of a block; fail if it writes a file or executes anything."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = resource.getrlimit(resource.RLIMIT_AS)
    alarm = signal.signal(signal.SIGALRM, _too_long)
    began, kept = time.process_time(), sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # of modules that a reader imports
    resource.setrlimit(
        resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, memory[1])
    )
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    WATCH.seen.clear()
    WATCH.armed = threading.get_ident()
    try:
        yield
    finally:
        WATCH.armed, sys.dont_write_bytecode = 0, kept
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        resource.setrlimit(resource.RLIMIT_AS, memory)
    assert time.process_time() - began < CPU_SECONDS, "hangs"
    assert not WATCH.seen, f"did {WATCH.seen}"


def outcome(read: Callable[[], object]) -> str:
    """Call `read` confined; return "read", or "refused" if it raises an error of this library.

    Any other exception fails the test.
    """
    with confined():
        try:
            read()
        except L2RMError as error:
            assert error.args and all(str(message).strip() for message in error.args)
            return "refused"
    return "read"
