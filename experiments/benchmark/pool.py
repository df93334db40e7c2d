"""Trains the runs of a suite side by side, each in a process of its own, on a core of its own.

A process is the command `l2rm --workdir=DIR`, and prints to `train.log` there. So a run can be
watched, stopped and continued by hand like any other.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.benchmark.suite import Cell
from experiments.papers.runs import epoch_records, total_epochs
from experiments.script import processor
from l2rm_jax.console import clock, say
from l2rm_jax.run.config_file import check_workdir, write_config
from l2rm_jax.run.results import RESULTS_FILE, write_json

COST_FILE = "cost.json"
LOG_FILE = "train.log"
POLL_SECONDS = 0.5
LINE_SECONDS = 60.0  # between two lines of progress
# The first steps of a process, before it becomes a run: on Linux, it keeps to a core, and asks for
# SIGTERM (15) when its parent is gone (1 is PR_SET_PDEATHSIG).
_LAUNCH = """
import ctypes, os, sys
if sys.platform == "linux":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    ctypes.CDLL(None).prctl(1, 15)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Failure(NamedTuple):
    """A run that ended with an error."""

    workdir: Path
    reason: str


class _Running(NamedTuple):
    process: subprocess.Popen
    workdir: Path
    core: int


def run_cells(cells: Sequence[Cell], out: Path, cores: Sequence[int]) -> list[Failure]:
    """Train the unfinished runs; a run that fails does not stop the others.

    Args:
      cells: the runs, the most urgent first.
      out: directory of the runs' own directories.
      cores: a run at a time on each.

    Returns:
      The runs that failed.

    Raises:
      ConfigError: a directory holds a run with another config; checked before anything is trained.
      KeyboardInterrupt: Ctrl-C came; the runs have saved their state.
    """
    for cell in cells:
        check_workdir(out / cell.name, cell.config)
    waiting = [cell for cell in cells if not (out / cell.name / RESULTS_FILE).exists()]
    running: list[_Running] = []
    failures: list[Failure] = []
    next_line = time.monotonic()
    try:
        while waiting or running:
            free = [core for core in cores if core not in [each.core for each in running]]
            for core in free[: len(waiting)]:
                running.append(_start(waiting.pop(0), out, core))
            for each in list(running):
                if (ended := _ended(each)) is not None:
                    running.remove(each)
                    failures += ended
            if time.monotonic() >= next_line:
                directories = [each.workdir for each in running]
                say(progress_line(cells, out, directories, len(cores)))
                next_line = time.monotonic() + LINE_SECONDS
            time.sleep(POLL_SECONDS)
    finally:  # ask the runs to save and stop, and wait for them
        for each in running:
            each.process.send_signal(signal.SIGTERM)
        for each in running:
            each.process.wait()
    say(progress_line(cells, out, [], len(cores)))
    return failures


def _start(cell: Cell, out: Path, core: int) -> _Running:
    workdir = out / cell.name
    write_config(workdir, cell.config)
    with (workdir / LOG_FILE).open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(core), *train_command(workdir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which stops the runs
        )
    return _Running(process, workdir, core)


def train_command(workdir: Path) -> list[str]:
    """The command that trains or continues a run whose config is in its directory."""
    return [sys.executable, "-m", "l2rm_jax.main", f"--workdir={workdir}"]


def _ended(each: _Running) -> list[Failure] | None:
    """Return None while the run is alive; else its failure, if it failed."""
    pid, status, usage = os.wait4(each.process.pid, os.WNOHANG)
    if not pid:
        return None
    each.process.returncode = os.waitstatus_to_exitcode(status)
    if each.process.returncode:
        lines = (each.workdir / LOG_FILE).read_text(errors="replace").strip().splitlines()
        return [Failure(each.workdir, lines[-1] if lines else f"status {status}")]
    unit = 1 if platform.system() == "Darwin" else 1024
    write_json(
        each.workdir / COST_FILE,
        {"peak_bytes": usage.ru_maxrss * unit, "commit": commit(), "machine": processor()},
    )
    return []


def progress_line(cells: Sequence[Cell], out: Path, running: Sequence[Path], at_a_time: int) -> str:
    """Return one line: runs done, time left once a run has finished, epochs of the running ones.

    A run is expected to take as long as the finished ones of its row and head, scaled by its
    epochs; if there is none, as long as the mean of all.

    Args:
      cells: the runs.
      out: directory of the runs' own directories.
      running: directories of the running ones.
      at_a_time: how many train side by side.
    """
    records = {path.name: epoch_records(path) for path in running}
    epochs = {name: done[-1]["epoch"] if done else 0 for name, done in records.items()}
    rates, waiting = defaultdict(list), []
    for cell in cells:
        kind, total = (cell.row, cell.config.model.head), total_epochs(cell.config)
        results = out / cell.name / RESULTS_FILE
        if results.exists():
            rates[kind].append(json.loads(results.read_text())["seconds"] / total)
        else:
            waiting.append((kind, max(total - epochs.get(cell.name, 0), 0)))
    parts = [f"{len(cells) - len(waiting)} of {len(cells)} runs done"]
    if rates:
        mean = np.mean([rate for each in rates.values() for rate in each])
        left = sum(float(np.mean(rates.get(kind, mean))) * count for kind, count in waiting)
        parts.append(f"about {clock(left / at_a_time)} left")
    return ", ".join(parts + [f"{name} after epoch {done}" for name, done in epochs.items()])


def commit() -> str:
    """Commit of this clone, short; with a plus if files differ from it, "" outside a clone."""
    ask = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    found = subprocess.run(ask, capture_output=True, text=True, check=False)
    return found.stdout.strip()
