"""InfoNCE with a learned temperature, and SigLIP's loss."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses import info_nce, sigmoid_contrastive
from tests import grid
from tests.grid import MAIN, batches, tiny_config


@pytest.mark.usefixtures("unchecked_arrays")
def test_sigmoid_is_the_loss_of_its_paper():
    """Algorithm 1: a sum over the batch of log sigmoid of signed logits."""
    sims = np.random.default_rng(0).uniform(-1, 1, (5, 5))
    signs = 2 * np.eye(5) - 1
    logits = 7.0 * sims - 3.0
    expected = -np.sum(np.log(1 / (1 + np.exp(-signs * logits)))) / 5
    found = sigmoid_contrastive(jnp.asarray(sims, jnp.float32), scale=7.0, bias=-3.0)
    assert float(found) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="square"):
        sigmoid_contrastive(jnp.zeros((2, 3)), scale=1.0, bias=0.0)
    huge = sigmoid_contrastive(jnp.full((2, 2), 1e4), scale=1.0, bias=0.0)
    assert np.isfinite(huge)


def start_of(method, **loss):
    config = tiny_config(method, "vse")
    config.loss.update(loss)
    config.optim.learning_rate = 1e-2
    cell = grid.make_cell(config)
    batch = next(batches(cell, MAIN))
    return cell.method, grid.start(cell.method, jax.random.key(0), cell.sample), batch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "start"), [("infonce", {"log_scale": 20.0}), ("sigmoid", {"log_scale": 10.0})]
)
def test_the_scale_is_trained_with_the_model(method, start):
    made, state, batch = start_of(method, learn_scale=True, tau=0.05)
    learned = state.params["loss"]
    assert math.exp(float(learned["log_scale"])) == pytest.approx(start["log_scale"], rel=1e-6)
    assert ("bias" in learned) == (method == "sigmoid")
    after, metrics = jax.jit(made.step)(state, batch)
    assert float(metrics["scale"]) == pytest.approx(start["log_scale"], rel=1e-6)
    for name in learned:
        assert float(after.params["loss"][name]) != float(learned[name])
    assert int(after.step) == 1


@pytest.mark.slow
def test_infonce_starts_at_tau_and_stays_below_its_limit():
    learned, state, batch = start_of("infonce", learn_scale=True, tau=0.05)
    plain, other, _ = start_of("infonce", tau=0.05)
    first = jax.jit(learned.step)(state, batch)[1]["loss"]
    second = jax.jit(plain.step)(other, batch)[1]["loss"]
    assert float(first) == pytest.approx(float(second), rel=1e-5)
    assert "loss" not in other.params
    beyond = state.replace(params={**state.params, "loss": {"log_scale": jnp.float32(9.0)}})
    after, metrics = jax.jit(learned.step)(beyond, batch)
    assert float(metrics["scale"]) == pytest.approx(100.0)
    # A scale at its limit is still trained: a step takes it to the limit, or below.
    assert float(after.params["loss"]["log_scale"]) == pytest.approx(math.log(100), abs=0.02)
    assert int(after.step) == 1 and float(metrics["grad_norm"]) > 0
    flat = learned.losses["pairs"][1](jnp.zeros((4, 4)))
    assert float(flat) == pytest.approx(2 * math.log(4), rel=1e-6)
    assert float(info_nce(jnp.zeros((4, 4)), tau=0.01)) == pytest.approx(float(flat))
