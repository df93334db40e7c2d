"""Images that stay on the devices give the same bits; advice when a device runs out of memory."""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.config import default
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.devices.hosts import advise_on_memory, describe_error
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.methods import EpochPlan
from l2rm_jax.models.retrieval import RetrievalModel
from l2rm_jax.run import memory
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.initialise import begin_epoch, open_run
from l2rm_jax.run.inputs import read_data
from l2rm_jax.run.memory import scoring_hints, stay_on_device, training_hints
from l2rm_jax.run.run import Run
from l2rm_jax.train import train
from tests.run import tiny_runs
from tests.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("shared_programs")


@pytest.fixture
def reads(monkeypatch) -> Counter:
    """Number of reads of each training image."""
    counter, read = Counter(), RegionFeatures.rows

    def counted(self, indices):
        if "train" in self.name:
            counter.update(np.asarray(indices).tolist())
        return read(self, indices)

    monkeypatch.setattr(RegionFeatures, "rows", counted)
    return counter


@pytest.mark.parametrize(
    ("platform", "free", "hosts", "stays"),
    [
        ("gpu", 200, 1, True),
        ("tpu", 200, 1, True),
        ("gpu", 199, 1, False),
        ("gpu", 200, 2, False),
        ("cpu", 10**12, 1, False),
    ],
)
def test_images_stay_on_accelerators_with_room_for_them_twice(platform, free, hosts, stays):
    assert stay_on_device(platform, free, 100, hosts) is stays


@pytest.mark.parametrize("devices", [1, 2])
def test_batches_are_equal(devices, tmp_path, monkeypatch, reads):
    config = tiny_config(changes={"l2rm.queue_length": 40})
    pairs = np.arange(100)
    several = np.tile(pairs[:, None, None], (1, 3, 2))
    plan = EpochPlan({"matched": pairs, "mismatched": pairs[::-1], "several": several})
    replicas = Replicas(jax.devices()[:devices])
    with open_run(config, read_data(config, tmp_path), tmp_path, replicas) as run:
        begin_epoch(run, 0)
        assert run.resident is None
        expected = [run.shard(batch) for batch in run.stream(plan, 0).iterate()]
        monkeypatch.setattr(memory, "stay_on_device", lambda *_: True)
        begin_epoch(run, 0)
        reads.clear()
        found = [run.shard(batch) for batch in run.stream(plan, 0).iterate()]
    assert not reads
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.slow
def test_runs_are_equal(tmp_path, monkeypatch, reads):
    monkeypatch.setattr(RetrievalModel, "is_product", False)  # the split scores pairs of images
    replicas, params, counts = Replicas(jax.devices()[:2]), {}, {}
    for name in ("read", "stay"):
        reads.clear()
        keep = lambda run, *_, to=name: params.update({to: run.state.params})  # noqa: E731
        train(tiny_config(), tmp_path / name, replicas, on_epoch=keep)
        counts[name] = sum(reads.values())
        monkeypatch.setattr(memory, "stay_on_device", lambda *_: True)
    jax.tree.map(np.testing.assert_array_equal, params["stay"], params["read"])
    assert tiny_runs.records(tmp_path / "stay") == tiny_runs.records(tmp_path / "read")
    assert counts["stay"] < counts["read"] / 4


@pytest.mark.parametrize(
    ("changes", "is_product", "training", "scoring"),
    [
        (
            {},
            False,
            ["train.batch_size=64", "model.chunk=1", "model.embed_dim=512"],
            ["evaluation.batch_size=64", "model.chunk=1"],
        ),
        ({}, True, ["train.batch_size=64", "model.embed_dim=512"], ["evaluation.batch_size=64"]),
        (
            {"train.batch_size": 2, "model.chunk": 9, "evaluation.batch_size": 1},
            False,
            ["model.chunk=4", "model.embed_dim=512"],
            ["model.chunk=4"],
        ),
    ],
)
def test_hints_name_only_what_can_be_smaller(changes, is_product, training, scoring):
    config = with_changes(default(), changes)
    assert training_hints(config, is_product) == [f"--config.{hint}" for hint in training]
    assert scoring_hints(config, is_product) == [f"--config.{hint}" for hint in scoring]


def exhaust_memory(*_) -> None:
    jax.block_until_ready(jnp.zeros((2**20, 2**28)) + 1)


@pytest.fixture
def run() -> SimpleNamespace:
    """The parts of a run that training and scoring use, without a model."""
    config = with_changes(default(), {"train.batch_size": 2, "model.chunk": 1})
    run = SimpleNamespace(config=config, model=SimpleNamespace(is_product=False), _scorer=None)
    run.state = SimpleNamespace(params={}, batch_stats={})
    run._variables, run.method = lambda n: {}, SimpleNamespace(networks=1)
    run._train_step = exhaust_memory
    run._training_memory = partial(Run._training_memory, run)
    return run


def test_training_and_scoring_advise_by_what_ran(run):
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        Run.train_step(run, {})
    assert "--config.model.embed_dim=512" in describe_error(raised.value)
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        Run.score(run, SimpleNamespace(split="dev"), exhaust_memory)
    assert "--config.evaluation.batch_size=64" in describe_error(raised.value)


def test_the_innermost_advice_counts_and_other_errors_get_none():
    with (
        pytest.raises(jax.errors.JaxRuntimeError) as raised,
        advise_on_memory("outside", []),
        advise_on_memory("inside", ["--config.a=1"]),
    ):
        exhaust_memory()
    found = describe_error(raised.value)
    assert "inside" in found and "--config.a=1" in found
    with pytest.raises(jax.errors.JaxRuntimeError) as raised, advise_on_memory("work", []):
        raise jax.errors.JaxRuntimeError("INTERNAL: broken\nmore")
    assert describe_error(raised.value) == "INTERNAL: broken"
