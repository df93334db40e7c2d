"""Runs so small that a test can afford several: in this process, traced, or in one of their own."""

import contextlib
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.cli import Mode
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.run import Run
from l2rm_jax.train import train
from tests.tiny import tiny_config

ROOT = Path(__file__).parents[2]
MOMENTS = ("step", "save", "split", "evaluation")  # lines that `traced` writes
CHILD = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", {devices})  # as here; threads affect rounding
sys.path[:0] = [{root!r}]
from tests.run import tiny_runs
tiny_runs.child({workdir!r}, {trace!r}, {fields!r})
"""


def run(workdir: Path, **fields: Any) -> dict:
    return train(tiny_config(**fields), workdir, Replicas(jax.devices()[:1]))


def records(workdir: Path) -> list[dict]:
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def best(workdir: Path) -> int:
    """Step of the best checkpoint; a killed run may also have kept the previous best."""
    return max(map(int, os.listdir(workdir / "checkpoints" / "best")))


@contextlib.contextmanager
def traced(trace: Path) -> Iterator[None]:
    """Write a line to `trace` when a run begins a step, save, split, evaluation or resume.

    After each step, write `state STEP CHECKSUM`.
    """
    file = trace.open("a", buffering=1)

    def announce(moment: str, function):
        def announced(self, *args, **kwargs):
            file.write(f"{moment}\n")
            return function(self, *args, **kwargs)

        return announced

    def step(self, batch, real=Run.train_step):
        file.write("step\n")
        metrics = real(self, batch)
        state = self.state
        kept = state.params, state.batch_stats, state.opt_state, state.own
        crc = 0
        for leaf in jax.tree.leaves(kept):
            crc = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8), crc)
        file.write(f"state {self.step} {crc}\n")
        return metrics

    def restore(self, real=Run.restore):
        is_restored = real(self)
        file.write(f"resumed {self.step}\n")
        return is_restored

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "restore", restore)
        patch.setattr(Run, "train_step", step)
        patch.setattr(Run, "validate", announce("evaluation", Run.validate))
        patch.setattr(Run, "score_pairs", announce("split", Run.score_pairs))
        patch.setattr(RunCheckpoints, "save", announce("save", RunCheckpoints.save))
        yield
    file.close()


def child(workdir: str, trace: str, fields: dict) -> None:
    """Train a run in this process through `main`; `CHILD` calls it in a process of its own."""
    with traced(Path(trace)), pytest.MonkeyPatch.context() as patch:
        train = Mode("train", "", "", (), lambda command: run(Path(workdir), **fields))
        patch.setattr(main, "MODES", [train])
        main.main([])


def states(trace: Path) -> dict[int, int]:
    """Checksum of the state after each step; a repeated step must have the same one."""
    checksums: dict[int, int] = {}
    for line in trace.read_text().splitlines():
        if line.startswith("state "):
            step, crc = map(int, line.split()[1:])
            assert checksums.setdefault(step, crc) == crc, f"step {step} differs when repeated"
    return checksums


class Process:
    """A run in a process of its own, which can be sent a signal at a chosen moment."""

    def __init__(self, workdir: Path, trace: Path, **fields: Any):
        trace.touch()
        self._trace, self._start = trace, len(trace.read_text())
        values = {"root": str(ROOT), "workdir": str(workdir), "trace": str(trace)}
        text = CHILD.format(**values, fields=fields, devices=len(jax.devices()))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", text],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lines(self) -> list[str]:
        """The trace of this process."""
        return self._trace.read_text()[self._start :].splitlines()

    def send(self, number: int, moment: str, times: int = 1, delay: float = 0.0) -> None:
        """Send signal `number` `delay` seconds after the moment has occurred `times` times."""
        while self._process.poll() is None:
            if self.lines().count(moment) >= times:
                time.sleep(delay)
                self._process.send_signal(number)
                return
            time.sleep(0.002)

    def end(self) -> tuple[int, str, float]:
        """Wait for the end; return the status, the output, and the seconds waited."""
        began = time.monotonic()
        output = self._process.communicate()[0]
        return self._process.returncode, output, time.monotonic() - began


def assert_same(workdir: Path, trace: Path, results: dict, whole: tuple[Path, Path, dict]) -> None:
    """Compare states, records and results of a stopped and of a whole run."""
    whole_workdir, whole_trace, expected = whole
    assert (results["test"], results["warnings"]) == (expected["test"], expected["warnings"])
    assert records(workdir) == records(whole_workdir)
    assert states(trace) == states(whole_trace)
    assert best(workdir) == best(whole_workdir)


def run_whole(root: Path, **fields: Any) -> tuple[Path, Path, dict]:
    with traced(root / "whole.trace"):
        return root / "whole", root / "whole.trace", run(root / "whole", **fields)
