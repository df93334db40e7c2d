"""Ctrl-C ends the program with one line and status 130, at any moment; real processes here."""

import signal
import subprocess
import sys
import time

import pytest

from l2rm_jax.interrupt import GRACE_SECONDS

# A library swallows an exception in its callback, as JAX in `_xla_gc_callback`.
SWALLOWS = """
import os, signal, sys, time
from l2rm_jax import interrupt
sys.argv = ["l2rm", "import", "--source=a b.csv"]
interrupt.handle_ctrl_c()
interrupt.begin_work("stopped by Ctrl-C; all is kept")
class Callback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
Callback()
time.sleep(30)
"""
# A long computation of a library in C: Python calls no handler until it returns.
IN_C = """
import ctypes, os, signal, sys, threading
from l2rm_jax import interrupt
sys.argv = ["l2rm", "check"]
interrupt.handle_ctrl_c()
interrupt.begin_work("stopped by Ctrl-C; all is kept")
threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
libc = ctypes.CDLL(None)
class Spec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
sigset = (ctypes.c_ulong * 16)()
libc.sigaddset(sigset, signal.SIGINT)
libc.pthread_sigmask(0, sigset, None)  # the main thread takes no signal, as when XLA compiles
libc.nanosleep(ctypes.byref(Spec(30, 0)), None)
"""
CLEANS = """
import os, signal, sys
from l2rm_jax import interrupt
interrupt.handle_ctrl_c()
interrupt.begin_work("stopped by Ctrl-C; all is kept")
try:
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        print("removed")
except KeyboardInterrupt:
    sys.exit(interrupt.end_work())
"""


@pytest.fixture(autouse=True)
def _signal_is_not_ignored():
    """In the background, the tests and their processes would ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(code: str) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], **pipes)


@pytest.mark.parametrize("code", [SWALLOWS, IN_C], ids=["swallowed", "in C"])
def test_the_program_ends_where_the_exception_does_not_end_it(code):
    began = time.monotonic()
    process = start(code)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "stopped by Ctrl-C; all is kept"
    assert GRACE_SECONDS <= time.monotonic() - began < 20


def test_work_removes_its_unfinished_files():
    process = start(CLEANS)
    output, errors = process.communicate()
    assert (output, errors) == ("removed\n", "stopped by Ctrl-C; all is kept\n")


def test_a_program_whose_work_is_done_ends_as_it_would():
    """Python gives the signal back to the system before it deletes the modules."""
    code = (
        "import os, signal; from l2rm_jax import interrupt\n"
        "ctrl_c.handle_ctrl_c(); interrupt.begin_work('stopped by Ctrl-C; all is kept')\n"
        "class Last:\n"
        "    def __del__(self, kill=os.kill, process=os.getpid()): kill(process, 2)\n"
        "last = Last(); print('done')"
    )
    process = start(code)
    assert process.communicate() == ("done\n", "") and process.returncode == 0


def test_a_program_in_the_background_goes_on_ignoring_it():
    code = (
        "import os, signal; from l2rm_jax.interrupt import handle_ctrl_c\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); handle_ctrl_c()\n"
        "os.kill(os.getpid(), signal.SIGINT); print('goes on')"
    )
    assert start(code).communicate()[0] == "goes on\n"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.3, 0.8, 1.5, 3.0, 5.0])
@pytest.mark.parametrize(
    ("module", "words", "again"),
    [
        ("l2rm_jax", ["check"], "l2rm check"),
        ("l2rm_jax.main", ["audit", "--out=an audit"], "l2rm audit '--out=an audit'"),
    ],
    ids=["check", "audit"],
)
def test_ctrl_c_is_answered_by_one_line(tmp_path, module, words, again, seconds):
    """The moments count from the import of the handler, which Python reports when asked to."""
    shown = tmp_path / "stderr"
    command = [sys.executable, "-X", "importtime", "-m", module, *words]
    with shown.open("w") as stream:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=stream, stderr=stream)
        while "l2rm_jax.interrupt" not in shown.read_text():
            time.sleep(0.01)
        time.sleep(0.05 + seconds)
        process.send_signal(signal.SIGINT)
        process.wait(GRACE_SECONDS + 20)
    lines = [line for line in shown.read_text().splitlines() if "import time:" not in line]
    if process.returncode == 0:  # it was faster
        assert seconds >= 3 and "stopped by" not in "".join(lines)
        return
    assert process.returncode == 130
    assert lines[-1].startswith("stopped by Ctrl-C; ") and lines[-1].endswith(f": {again}")
    assert not any("Traceback" in line or "KeyboardInterrupt" in line for line in lines)
