"""The sentences of a run at its start."""

import re

import pytest

from l2rm_jax.config import default, flat
from l2rm_jax.data.loading import load_data
from l2rm_jax.run import description
from l2rm_jax.run.description import describe, expected_epoch
from l2rm_jax.run.run import Run
from tests.run.tiny_runs import one_device
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def run() -> Run:
    config = tiny_config("infonce")
    return Run(config, load_data(config.data, config.mismatch, workdir=None), one_device())


@pytest.fixture
def slow_machine(run, monkeypatch):
    """A machine on which a step of this model takes 20 seconds; even small models are asked."""
    monkeypatch.setattr(description, "_LARGE", 1)
    rate = run.step_operations(batches(run)) / (description._EFFICIENCY * 20.0)
    monkeypatch.setattr(description, "operations_per_second", lambda: rate)


def batches(run: Run) -> dict:
    return run.shard({"pairs": run._sample})


def test_epochs_are_those_of_the_warm_up_and_after(run):
    assert "3 epochs: 1 warm-up + 2" in describe(run, run.replicas).splitlines()


@pytest.mark.usefixtures("slow_machine")
def test_a_long_epoch_is_told_with_fields_that_exist(run):
    line = expected_epoch(run, batches(run), steps=1000)
    assert "about 5.6 hours on this CPU, 1,000 steps of 20.0 s" in line
    fields = re.findall(r"--config\.([\w.]+)=", line)
    assert fields and set(fields) <= flat(default()).keys()
    assert "about 20 minutes" in expected_epoch(run, batches(run), steps=60)


@pytest.mark.usefixtures("slow_machine")
def test_short_epochs_and_accelerators_have_no_line(run, monkeypatch):
    assert expected_epoch(run, batches(run), steps=29) == ""
    monkeypatch.setattr(type(run.replicas), "on_cpu", False)
    assert expected_epoch(run, batches(run), steps=1000) == ""


def test_small_models_are_not_measured(run, monkeypatch):
    monkeypatch.setattr(description, "operations_per_second", None)  # an error if called
    assert expected_epoch(run, batches(run), steps=10**9) == ""
