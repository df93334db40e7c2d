"""Weights per pair: curves by score, and losses with them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses import (
    info_nce,
    osa,
    osa_code,
    sigmoid_contrastive,
    triplet_hardest,
    triplet_mean,
)

SIMS = jnp.asarray(np.random.default_rng(0).uniform(-0.2, 0.9, (7, 7)), jnp.float32)
WEIGHTS = jnp.asarray(np.random.default_rng(1).uniform(0, 1, 7), jnp.float32)
LOSSES = {
    "info_nce": jax.jit(partial(info_nce, tau=0.1)),
    "triplet_hardest": jax.jit(partial(triplet_hardest, margin=0.2)),
    "triplet_mean": jax.jit(partial(triplet_mean, margin=0.2)),
    "sigmoid": jax.jit(
        partial(sigmoid_contrastive, scale=jnp.float32(7.0), bias=jnp.float32(-3.0))
    ),
}


def naive(name: str, sims, weights) -> float:
    """Sum each term times the weight of the pair that is its positive, one at a time."""
    sims, weights = np.asarray(sims, float), np.asarray(weights, float)
    size, total = len(sims), 0.0
    for i in range(size):
        for scores in (sims[i], sims[:, i]):
            if name == "info_nce":
                odds = np.exp(scores / 0.1)
                total -= weights[i] * np.log(odds[i] / odds.sum()) / size
            elif name != "sigmoid":
                hinges = [max(0, 0.2 + s - scores[i]) for j, s in enumerate(scores) if j != i]
                taken = max(hinges) if name == "triplet_hardest" else sum(hinges) / size
                total += weights[i] * taken
        if name == "sigmoid":
            for j in range(size):
                logit = 7.0 * sims[i, j] - 3.0
                term = np.log1p(np.exp(-logit if i == j else logit))
                total += (weights[i] if i == j else 1.0) * term / size
    return total


@pytest.mark.parametrize("name", LOSSES)
def test_weights_multiply_the_terms_of_their_pair(name):
    loss = LOSSES[name]
    assert float(loss(SIMS, weights=WEIGHTS)) == pytest.approx(naive(name, SIMS, WEIGHTS), rel=1e-5)
    assert float(loss(SIMS, weights=jnp.ones(7))) == pytest.approx(float(loss(SIMS)), rel=1e-6)
    assert float(loss(SIMS, weights=2.5)) != float(loss(SIMS))


@pytest.mark.parametrize("name", LOSSES)
def test_a_pair_without_weight_moves_nothing_as_a_positive(name):
    """It still is a candidate of the other pairs: the gradient of the loss without its terms."""
    weights = jnp.ones(7).at[2].set(0.0)
    gradient = jax.jit(jax.grad(LOSSES[name]))
    found = gradient(SIMS, weights=weights)
    if name == "sigmoid":
        assert float(found[2, 2]) == 0.0
    else:
        assert float(found[2, 2]) <= 0 and np.isfinite(found).all()
        only = gradient(SIMS, weights=1 - weights)
        whole = gradient(SIMS)
        np.testing.assert_allclose(found + only, whole, atol=1e-5)


def test_the_curve_of_the_paper():
    cosines = jnp.asarray([-0.3, 0.2, 0.5, 0.2 + 2 / 3, 1.2, 2.0])
    found = np.asarray(osa(cosines, 0.2))
    np.testing.assert_allclose(found, [0, 0, 0.3**2 * 0.7, 4 / 27, 0, 0], atol=1e-6)
    assert np.all(np.diff(osa(jnp.linspace(0, 2 / 3, 50))) >= 0)


def test_the_curve_of_the_code():
    scores = jnp.asarray([10.0, 30.0, 25.0, 20.0])
    share = np.array([0, 1, 0.5, 0])
    np.testing.assert_allclose(osa_code(scores, 20.0), share**2 * (1 - share**2), atol=1e-6)
    np.testing.assert_allclose(osa_code(7 * scores, 140.0), osa_code(scores, 20.0), atol=1e-6)


@pytest.mark.parametrize("scores", [[1.0, 2.0], [4.0, 2.0]])
def test_batches_without_two_pairs_above_the_threshold_have_no_weight(scores):
    assert np.asarray(osa_code(jnp.asarray(scores), 3.0)).tolist() == [0.0, 0.0]
    gradient = jax.jit(jax.grad(lambda s: jnp.sum(osa_code(s, 3.0))))(jnp.asarray(scores))
    assert np.isfinite(gradient).all()
