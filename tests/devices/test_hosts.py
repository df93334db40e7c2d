"""Two hosts: processes with two simulated devices each, which communicate on loopback."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.train import train
from tests import tiny

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    **{f"model.{name}": size for name, size in tiny.MODEL.items()},
    "data.scenes_train": 8,
    "data.scenes_dev": 2,
    "data.scenes_test": 1,  # fewer than hosts
    "data.max_words": 8,  # a single shape to compile for
    "train.batch_size": 20,
    "train.warmup_epochs": 1,
    "train.epochs": 1,
    "train.log_steps": 1,
    "optim.learning_rate": 2e-4,  # the published one
}
WALL_CLOCK = "seconds"
# In eval mode, biases that train mode cancels have an effect; their values are noise.
EVAL_MODE = ("loss_cost", "split_separation")
# Biases that a norm or a softmax cancels: their gradients are rounding, which Adam scales up.
CANCELLED = r"(common|global_projection|gate)'\]\['bias'\]$"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_flags(workdir: Path, changes: dict) -> list[str]:
    settings = [f"--config.{key}={value}" for key, value in changes.items()]
    return [f"--workdir={workdir}", "--config=scenes:quick", *settings]


class TwoHosts:
    """The two processes of a command, and their output so far."""

    def __init__(self, logs: Path, flags: Sequence[str], second_flags: Sequence[str]):
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "l2rm_jax.main", *flags]
        command += [f"--coordinator=127.0.0.1:{free_port()}", "--hosts=2"]
        self._logs = [logs / f"host{host}.log" for host in range(2)]
        self.processes = []
        for host, log in enumerate(self._logs):
            with log.open("w") as file:
                streams = {"stdout": file, "stderr": subprocess.STDOUT}
                own = [f"--host={host}", *(second_flags if host else ())]
                started = subprocess.Popen([*command, *own], cwd=logs, env=environment, **streams)
            self.processes.append(started)

    def output(self, host: int) -> str:
        return self._logs[host].read_text()

    def finish(self) -> None:
        for host, process in enumerate(self.processes):
            assert process.wait(timeout=300) == 0, self.output(host)[-3000:]

    def wait_for_output(self, text: str) -> None:
        self._wait(lambda: text in self.output(0))

    def wait_for(self, path: Path) -> None:
        self._wait(path.exists)

    def _wait(self, happened: Callable[[], bool]) -> None:
        limit = time.monotonic() + 300
        while not happened():
            ended = [process.poll() for process in self.processes]
            assert time.monotonic() < limit and ended == [None, None], self.output(0)[-3000:]
            time.sleep(0.02)


@contextlib.contextmanager
def two_hosts(logs: Path, *flags: str, second_flags: Sequence[str] = ()) -> Iterator[TwoHosts]:
    """Start two hosts and kill them on exit; `second_flags` are flags of the second host only."""
    hosts = TwoHosts(logs, flags, second_flags)
    try:
        yield hosts
    finally:
        for process in hosts.processes:
            process.kill()
            process.wait()


def check_records(found: Path, expected: Path) -> None:
    ours, theirs = (
        [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        for workdir in (found, expected)
    )
    assert len(ours) == len(theirs) > 5
    for record, other in zip(ours, theirs, strict=True):
        assert record.keys() == other.keys()
        for name in record.keys() - {WALL_CLOCK}:
            rel = 1e-3 if name in EVAL_MODE else 1e-5
            number = isinstance(other[name], float)
            same = pytest.approx(other[name], rel=rel) if number else other[name]
            assert record[name] == same, f"{name} of step {record['step']}"


def check_same_bits(found: Path, expected: Path, abstract) -> None:
    ours, theirs = (
        [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        for workdir in (found, expected)
    )
    assert [r | {WALL_CLOCK: 0} for r in ours] == [r | {WALL_CLOCK: 0} for r in theirs]
    ours, theirs = (parameters(workdir, abstract) for workdir in (found, expected))
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(x, y)


def parameters(workdir: Path, abstract):
    with RunCheckpoints(workdir / "checkpoints") as checkpoints:
        return checkpoints.restore_latest(abstract).state.params


def check_parameters(workdir: Path, expected) -> None:
    found = parameters(workdir, expected)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(found)]
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected.params), strict=True)
    for name, (x, y) in zip(names, pairs, strict=True):
        if not re.search(CANCELLED, name):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.slow
def test_two_hosts_train_as_one_even_after_a_crash(tmp_path):
    """Kill a host after the warm-up: the other stops. Start both again and send SIGTERM to one:
    both stop. Start both once more: they end with the bits of an undisturbed run of two hosts, and
    with the results of one host."""
    workdir, undisturbed, alone = (tmp_path / name for name in ("hosts", "undisturbed", "alone"))
    changes = TINY | {"model.head": "vse"}  # compiles in a fraction of the time
    with two_hosts(tmp_path, *make_flags(workdir, changes)) as hosts:
        hosts.wait_for(workdir / "checkpoints" / "latest" / "2")
        hosts.processes[1].kill()
        assert hosts.processes[0].wait(timeout=60) == 1
        assert "host 0 stops" in hosts.output(0) and "stack trace" not in hosts.output(0)
    with two_hosts(tmp_path, *make_flags(workdir, changes)) as hosts:
        hosts.wait_for_output("training in")
        hosts.processes[0].send_signal(signal.SIGTERM)
        for host, process in enumerate(hosts.processes):
            assert process.wait(timeout=90) == 128 + signal.SIGTERM, hosts.output(host)[-3000:]
            assert "; saved. Continue: start all hosts again" in hosts.output(host)
    assert not (workdir / "results.json").exists()
    with two_hosts(tmp_path, *make_flags(workdir, changes)) as hosts:
        hosts.finish()
        assert "training in" in hosts.output(0)  # one host prints
        assert "training in" not in hosts.output(1) and "mismatch" not in hosts.output(1)
    with two_hosts(tmp_path, *make_flags(undisturbed, changes)) as hosts:
        hosts.finish()

    replicas, states = Replicas(jax.devices()[:4]), []
    config = with_changes(defaults.get_config("quick"), changes)
    keep = lambda run, *_: states.append(replicas.unreplicate(run.state))  # noqa: E731
    results = train(config, alone, replicas, on_epoch=keep)
    check_same_bits(workdir, undisturbed, states[-1])
    check_records(workdir, alone)
    check_parameters(workdir, states[-1])
    saved = json.loads((workdir / "results.json").read_text())
    assert saved["test"] == results["test"] and saved["versions"]["device_count"] == 4


@pytest.mark.slow
def test_hosts_that_differ_are_refused(tmp_path):
    """They stop before they write anything; otherwise each would wait for the other for ever."""
    flags = make_flags(tmp_path / "run", TINY)
    with two_hosts(tmp_path, *flags, second_flags=["--config.seed=1"]) as hosts:
        for host, process in enumerate(hosts.processes):
            assert process.wait(timeout=120) == 1
            assert (
                "config and training pairs: found a difference between host 0 and"
                in hosts.output(host)
            )
    assert not (tmp_path / "run").exists()
