"""Failures in the middle of a run: a full disk, numbers that are not finite."""

import contextlib
import errno
import os
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from l2rm_jax.errors import CheckpointError, DivergedError
from l2rm_jax.run import log as run_log
from l2rm_jax.run.run import Run
from tests.run.tiny_runs import records, run, states, traced

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.mark.slow
def test_a_disk_that_is_full_while_logging_names_the_last_checkpoint(tmp_path, monkeypatch):
    def refuse(file, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)

    monkeypatch.setattr(run_log, "_append", refuse)  # first called at step 3
    message = r"No space left on device: '.*metrics\.jsonl'.*/latest/2$"
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path, method="triplet", warmup_epochs=1, epochs=0)


@contextlib.contextmanager
def spoilt(*steps: int) -> Iterator[list[dict]]:
    """Make the images of these steps infinite; yields the pairs of each such step, by stream."""
    real, seen = Run.train_step, []

    def train_step(self, batch):
        if self.step + 1 in steps:
            seen.append({name: b.pair_index.ravel().tolist() for name, b in batch.items()})
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
    for text in ("nan", "step 3", "metrics.jsonl", str(newest)):
        assert text in str(raised.value)
    assert records(tmp_path / "stop")[-1]["pairs"] == seen[0]
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
    with spoilt(*range(1, 6)), pytest.raises(DivergedError, match="epoch 1"):
        run(tmp_path / "all", method="triplet", non_finite="skip", **one_epoch)


def test_parameters_whose_norm_is_not_finite_stop_the_run():
    """A learning rate of 1e30 makes them so large; vectors divided by an infinite norm are zero."""
    state = SimpleNamespace(params={"a": np.full(3, 1e30, np.float32)}, epoch=0)
    run = SimpleNamespace(state=state, step=7)
    with pytest.raises(DivergedError, match="inf at step 7"):
        Run.validate(run)
