"""Advice when a device runs out of memory, by the work that was running."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from l2rm_jax.config import default
from l2rm_jax.devices.hosts import advise_on_memory, describe_error
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.memory import scoring_hints, training_hints
from l2rm_jax.run.run import Run


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
