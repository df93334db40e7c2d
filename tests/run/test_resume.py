"""A run that is stopped at any moment ends as if it had not been stopped.

On one CPU device, states and results are equal bit for bit.
"""

import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from absl import flags

from l2rm_jax import config as defaults
from l2rm_jax import main
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import CheckpointError, DivergedError, StoppedError
from l2rm_jax.run import log as run_log
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.run import Run
from l2rm_jax.run.stop_signal import StopSignal
from l2rm_jax.train import train

ROOT = Path(__file__).parents[2]
MOMENTS = ("step", "save", "split", "evaluation")  # lines that `traced` writes
CHILD = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", {devices})  # as here; threads affect rounding
sys.path[:0] = [{root!r}]
from tests.run import test_resume
test_resume.child({workdir!r}, {trace!r}, {fields!r})
"""


def tiny_config(
    method: str = "l2rm",
    head: str = "vse",
    max_words: int = 8,  # a single shape to compile for
    **train_fields: Any,
):
    config = defaults.get_config("quick")
    config.method, config.model.head = method, head
    config.model.embed_dim, config.model.word_dim, config.model.sim_dim = 16, 8, 8
    config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 20, 6, 10
    config.data.max_words = max_words
    config.train.batch_size = 20
    config.train.warmup_epochs, config.train.epochs = 1, 2
    config.train.checkpoint_steps, config.train.log_steps = 2, 3
    config.train.update(train_fields)
    return config


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
        leaves = jax.tree.leaves((self.state.params, self.state.opt_state, self.state.own))
        crc = 0
        for leaf in leaves:
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
        patch.setitem(main._MODES, "train", lambda: run(Path(workdir), **fields))
        flags.FLAGS(["main"])
        main.main(["main"])


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


@contextlib.contextmanager
def asked_to_stop(at: str) -> Iterator[None]:
    """Send SIGTERM to this process when the method `at` of `Run` is called."""
    real = getattr(Run, at)

    def call(self, *args):
        os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, at, call)
        yield


@contextlib.contextmanager
def endless_compilation(after: int) -> Iterator[None]:
    """Send SIGTERM in the first compilation after `after` steps; that compilation never ends."""
    real, left = Run.compile_step, threading.Event()

    def compile_step(self, batch, wait):
        with pytest.MonkeyPatch.context() as patch:
            if self.step >= after:
                patch.setattr(jax.stages.Lowered, "compile", endless)
            real(self, batch, wait)

    def endless(_):
        os.kill(os.getpid(), signal.SIGTERM)
        left.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "compile_step", compile_step)
        yield
    left.set()


def assert_same(workdir: Path, trace: Path, results: dict, whole: tuple[Path, Path, dict]) -> None:
    """Compare states, records and results of a stopped run with those of a whole one."""
    whole_workdir, whole_trace, expected = whole
    assert (results["test"], results["warnings"]) == (expected["test"], expected["warnings"])
    assert records(workdir) == records(whole_workdir)
    assert states(trace) == states(whole_trace)
    assert best(workdir) == best(whole_workdir)


def run_whole(root: Path, **fields: Any) -> tuple[Path, Path, dict]:
    with traced(root / "whole.trace"):
        return root / "whole", root / "whole.trace", run(root / "whole", **fields)


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_numbers(tmp_path):
    """Send SIGKILL during a save in a rematching epoch."""
    fields = {"warmup_epochs": 0, "epochs": 2}
    whole = run_whole(tmp_path, **fields)
    workdir, trace = tmp_path / "killed", tmp_path / "killed.trace"
    process = Process(workdir, trace, **fields)
    process.send(signal.SIGKILL, "save", times=2)
    assert process.end()[0] == -signal.SIGKILL
    assert not (workdir / "results.json").exists()
    assert len(records(workdir)) < len(records(whole[0]))
    with traced(trace):
        results = run(workdir, **fields)
    assert_same(workdir, trace, results, whole)


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_saves_and_continues(tmp_path):
    """Send SIGTERM during a step and during an evaluation."""
    fields = {"method": "triplet", "warmup_epochs": 1, "epochs": 0}
    whole = run_whole(tmp_path, **fields)
    workdir, trace = tmp_path / "stopped", tmp_path / "stopped.trace"
    before = signal.getsignal(signal.SIGTERM)
    for at, step in [("train_step", 1), ("validate", 5)]:
        with (
            traced(trace),
            asked_to_stop(at),
            pytest.raises(StoppedError, match=r"SIGTERM; saved in .*/stopped, and continues with"),
        ):
            run(workdir, **fields)
        assert str(step) in os.listdir(workdir / "checkpoints" / "latest")
    assert signal.getsignal(signal.SIGTERM) is before
    with traced(trace):
        results = run(workdir, **fields)
    assert_same(workdir, trace, results, whole)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1])
def test_sigterm_ends_the_wait_for_a_compilation(tmp_path, after):
    """Compile the first step, or one in the middle of an epoch with longer captions."""
    fields = {"method": "triplet", "max_words": 32, "batch_size": 5, "epochs": 0}
    whole = run_whole(tmp_path, **fields)
    workdir, trace = tmp_path / "stopped", tmp_path / "stopped.trace"
    with traced(trace), endless_compilation(after), pytest.raises(StoppedError, match="SIGTERM"):
        run(workdir, **fields)
    taken = states(trace)
    assert after <= len(taken) < len(states(whole[1]))
    with traced(trace):
        results = run(workdir, **fields)
    assert f"resumed {len(taken)}" in trace.read_text().splitlines()
    assert_same(workdir, trace, results, whole)


def test_sigterm_ends_the_command_line_with_its_status(monkeypatch, capsys):
    def stopped() -> None:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            with stop.interruptible():
                pytest.fail("the block was entered")

    monkeypatch.setitem(main._MODES, "train", stopped)
    monkeypatch.setattr(os, "_exit", sys.exit)
    flags.FLAGS(["main"])
    with pytest.raises(SystemExit) as ended:
        main.main(["main"])
    assert ended.value.code == 143
    assert capsys.readouterr().err == "stopped by SIGTERM\n"


@pytest.mark.slow
def test_a_disk_that_is_full_while_logging_names_the_last_checkpoint(tmp_path, monkeypatch):
    def refuse(file, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)

    monkeypatch.setattr(run_log, "_append", refuse)  # first called at step 3
    message = r"No space left on device: '.*metrics\.jsonl'; the last good .*/latest/2$"
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path, method="triplet", warmup_epochs=1, epochs=0)


@contextlib.contextmanager
def spoilt(*steps: int) -> Iterator[list[dict]]:
    """Make the images of these steps infinite; yields the pairs of each such step, by stream."""
    real, seen = Run.train_step, []

    def train_step(self, batch):
        if self.step + 1 in steps:
            seen.append({name: b.pair_index.tolist() for name, b in batch.items()})
            batch = {name: b._replace(images=b.images * np.inf) for name, b in batch.items()}
        return real(self, batch)

    with pytest.MonkeyPatch.context() as patch, np.errstate(invalid="ignore"):
        patch.setattr(Run, "train_step", train_step)
        yield seen


@pytest.mark.slow
def test_a_step_that_is_not_finite_stops_the_run_or_is_skipped_and_counted(tmp_path):
    one_epoch = {"warmup_epochs": 1, "epochs": 0}
    with spoilt(3) as seen, pytest.raises(DivergedError) as raised:
        run(tmp_path / "stop", method="triplet", **one_epoch)
    newest = tmp_path / "stop" / "checkpoints" / "latest" / "2"
    for text in ("nan at step 3 of epoch 1", str(seen[0]), f"checkpoint is {newest}. Try"):
        assert text in str(raised.value)
    assert newest.is_dir()
    with spoilt(3) as seen, traced(tmp_path / "trace"):
        run(tmp_path / "skip", method="triplet", non_finite="skip", **one_epoch)
    crc = states(tmp_path / "trace")
    assert crc[3] == crc[2] and len(set(crc.values())) == len(crc) - 1
    [skipped] = [record for record in records(tmp_path / "skip") if record["kind"] == "skipped"]
    assert (skipped["step"], skipped["epoch"]) == (3, 1)
    assert skipped["pairs"] == seen[0] and "loss" in skipped["non_finite"]
    *steps, epoch = [r for r in records(tmp_path / "skip") if r["kind"] in ("step", "epoch")]
    assert epoch["skipped"] == 1
    assert all(np.isfinite([record["loss"] for record in [*steps, epoch]]))
    with spoilt(*range(1, 6)), pytest.raises(DivergedError, match="epoch 1: no step had a finite"):
        run(tmp_path / "all", method="triplet", non_finite="skip", **one_epoch)


@pytest.mark.exhaustive
def test_twenty_random_kills(tmp_path):
    """Send 20 SIGKILL and 5 SIGTERM at random moments; takes about ten minutes.

    Prints for each: signal, moment, delay in seconds, resumed step, whether the states are equal.
    """
    fields = {"head": "saf", "epochs": 6}
    whole = tmp_path / "whole"
    process = Process(whole, tmp_path / "trace", **fields)
    status, output, _ = process.end()
    assert status == 0, output[-2000:]
    expected = states(tmp_path / "trace")
    random, log, number, waits = np.random.default_rng(), [], itertools.count(), []
    entropy = random.bit_generator.seed_seq.entropy
    while len(log) < 25:
        workdir = tmp_path / f"run {next(number)}"
        trace = workdir.with_suffix(".trace")
        description = None
        while not (workdir / "results.json").exists():
            process = Process(workdir, trace, **fields)
            if len(log) < 25:
                number_of_signal = signal.SIGTERM if len(log) % 5 == 4 else signal.SIGKILL
                moment = MOMENTS[len(log) % len(MOMENTS)]
                delay = float(random.exponential(0.05))
                process.send(
                    number_of_signal, moment, times=int(random.integers(1, 4)), delay=delay
                )
            status, output, waited = process.end()
            steps = [line.split() for line in process.lines() if line.startswith("state ")]
            if description is not None:
                [resumed] = [line for line in process.lines() if line.startswith("resumed ")]
                same = all(expected[int(step)] == int(crc) for _, step, crc in steps)
                verdict = "equal" if same else "DIFFER"
                resumed = resumed.replace(" ", " at ")
                log.append(f"{description}: {resumed}, {len(steps)} steps {verdict}")
                description = None
            if status == 0:
                break
            assert status in (-signal.SIGKILL, 143), output[-2000:]
            if status == 143:
                waits.append(waited)
                assert "continues with the same command" in output.splitlines()[-1]
            step = max((int(line[1]) for line in steps), default=0)
            name = signal.Signals(number_of_signal).name
            description = f"{name} at a {moment} + {delay:.3f} s, after step {step}"
        assert states(trace) == expected
        assert records(workdir) == records(whole)
        assert best(workdir) == best(whole)
        results = [json.loads((run / "results.json").read_text()) for run in (workdir, whole)]
        assert results[0]["test"] == results[1]["test"]
    print(f"\nseed {entropy}; SIGTERM took {max(waits, default=0):.1f} s at most", *log, sep="\n")
    assert max(waits, default=0) < 30 and not any("DIFFER" in line for line in log)
