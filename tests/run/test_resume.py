"""A run that is stopped at any moment ends as if it had not been stopped.

On one CPU device, states and results are equal bit for bit.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import jax
import pytest

from l2rm_jax.errors import StoppedError
from l2rm_jax.models import naaf_threshold
from l2rm_jax.run.config_file import read_config
from l2rm_jax.run.run import Run
from l2rm_jax.run.stop_signal import SIGNALS
from tests.run.tiny_runs import (
    Process,
    assert_same,
    records,
    run,
    run_whole,
    states,
    traced,
)
from tests.shared_programs import shared_programs
from tests.tiny import write_vectors


@contextlib.contextmanager
def asked_to_stop(number: int, at: str) -> Iterator[None]:
    """Send a signal to this process when the method `at` of `Run` is called."""
    real = getattr(Run, at)

    def call(self, *args):
        os.kill(os.getpid(), number)
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


@pytest.mark.slow
@shared_programs()
def test_a_killed_run_continues_to_the_same_numbers(tmp_path):
    """Send SIGKILL during a save; the method has two networks and numbers of each pair."""
    fields = {"method": "sps", "warmup_epochs": 0, "epochs": 2}
    whole = run_whole(tmp_path, **fields)
    workdir, trace = tmp_path / "killed", tmp_path / "killed.trace"
    process = Process(workdir, trace, **fields)
    process.send(signal.SIGKILL, "save", times=2)
    assert process.end() == -signal.SIGKILL
    assert not (workdir / "results.json").exists()
    assert len(records(workdir)) < len(records(whole[0]))
    with traced(trace):
        results = run(workdir, **fields)
    assert_same(workdir, trace, results, whole)


@pytest.mark.slow
@shared_programs()
def test_a_run_that_is_stopped_and_given_more_epochs_equals_one_with_all_at_once(tmp_path, capsys):
    """SIGTERM during a step, two more epochs when it is finished, Ctrl-C during a validation.

    The learning rate decays after each epoch.
    """
    vectors = {"data.name": "mine", "data.path": str(write_vectors(tmp_path / "data", train=20))}
    changes = {"optim.decay_epochs": 1, **vectors}
    fields = {"method": "infonce", "warmup_epochs": 0, "changes": changes}
    whole = run_whole(tmp_path, epochs=3, **fields)
    workdir, trace = tmp_path / "stopped", tmp_path / "stopped.trace"
    before = [signal.getsignal(number) for number in SIGNALS]

    def stop(epochs: int, number: int, at: str, place: str) -> None:
        message = rf"{place}.* l2rm --workdir=.*/stopped$"
        with asked_to_stop(number, at), pytest.raises(StoppedError, match=message) as stopped:
            run(workdir, epochs=epochs, **fields)
        assert stopped.value.signal == number

    with traced(trace):
        stop(1, signal.SIGTERM, "train_step", "epoch 1, step 1")
        run(workdir, epochs=1, **fields)
        assert "epoch 1, step 1\n" in capsys.readouterr().out
        stop(3, signal.SIGINT, "validate", "epoch 2, step 5")
        said = capsys.readouterr().out
        assert "train.epochs: 1 -> 3" in said and "epoch 2, step 0\n" in said
        assert read_config(workdir).train.epochs == 3
        results = run(workdir, epochs=3, **fields)
    assert_same(workdir, trace, results, whole)
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.slow
@pytest.mark.parametrize("by", naaf_threshold.THRESHOLDS)
@shared_programs()
def test_a_stopped_run_continues_with_the_threshold_of_naaf(tmp_path, monkeypatch, by):
    """Few words suffice to move the threshold here, so that tiny batches do."""
    monkeypatch.setattr(naaf_threshold, "FEWEST_WORDS", 4)
    thresholds = {"restore": [], "validate": []}

    def note(name: str, real) -> None:
        def call(self):
            value = real(self)
            threshold = self.state.batch_stats["similarity_head"]["threshold"]
            thresholds[name].append(float(threshold))
            return value

        monkeypatch.setattr(Run, name, call)

    note("restore", Run.restore)
    note("validate", Run.validate)
    changes = {"naaf.threshold": by, "mismatch.rate": 0.0}
    fields = {"method": "triplet", "head": "naaf", "changes": changes}
    fields |= {"batch_size": 50, "warmup_epochs": 0, "epochs": 2}
    whole = run_whole(tmp_path, **fields)
    first, last = thresholds["validate"]
    assert 0 < first != last > 0
    workdir, trace = tmp_path / "stopped", tmp_path / "stopped.trace"
    with traced(trace):
        with asked_to_stop(signal.SIGTERM, "validate"), pytest.raises(StoppedError):
            run(workdir, **fields)
        results = run(workdir, **fields)
    assert thresholds["restore"][-1] == first
    assert_same(workdir, trace, results, whole)


def test_of_epochs_with_equal_recalls_the_latest_is_the_best():
    saved = []
    run = SimpleNamespace(
        position={"best_rsum": 600.0},
        checkpoints=SimpleNamespace(save_best=lambda step, state: saved.append(step)),
        step=14,
        state=None,
        save=lambda: None,
    )
    Run.finish_epoch(run, 2, 599.0)
    assert saved == [] and run.position["best_rsum"] == 600.0
    Run.finish_epoch(run, 3, 600.0)
    assert saved == [14]


SEVERAL_LENGTHS = {
    "method": "triplet",
    "changes": {"data.max_words": 32},
    "batch_size": 5,
    "epochs": 0,
}


@pytest.fixture(scope="module")
def whole_of_several_lengths(tmp_path_factory):
    return run_whole(tmp_path_factory.mktemp("lengths"), **SEVERAL_LENGTHS)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1])
def test_sigterm_ends_the_wait_for_a_compilation(whole_of_several_lengths, tmp_path, after):
    """Compile the first step, or one in the middle of an epoch with longer captions."""
    fields, whole = SEVERAL_LENGTHS, whole_of_several_lengths
    workdir, trace = tmp_path / "stopped", tmp_path / "stopped.trace"
    with traced(trace), endless_compilation(after), pytest.raises(StoppedError):
        run(workdir, **fields)
    taken = states(trace)
    assert after <= len(taken) < len(states(whole[1]))
    with traced(trace):
        results = run(workdir, **fields)
    assert f"resumed {len(taken)}" in trace.read_text().splitlines()
    assert_same(workdir, trace, results, whole)
