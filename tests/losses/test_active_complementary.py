"""CRCL's loss and its labels in memory against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses.complementary import NEGATIVE_WEIGHT, active_complementary, refined_labels
from l2rm_jax.losses.contrastive import info_nce, info_nce_per_pair, pair_probabilities

TAU = 0.05
RNG = np.random.default_rng(0)
SIMS = RNG.uniform(-0.3, 0.9, (7, 7)).astype(np.float32)
LABELS = np.array([0, 0.1, 0.3, 0.5, 0.7, 0.9, 1], np.float32)


def probabilities() -> list[np.ndarray]:
    """Softmax over the captions of each image, and over the images of each caption, [7, 7]."""
    odds = np.exp(SIMS.astype(np.float64) / TAU)
    return [odds / odds.sum(1, keepdims=True), (odds / odds.sum(0)).T]


@jax.jit
def whole(sims, labels, tau):
    active, negative = active_complementary(sims, labels, tau=tau)
    return active + NEGATIVE_WEIGHT * negative


def test_active_complementary_loss_is_that_of_plain_loops():
    active = negative = 0.0
    for p in probabilities():
        for i in range(7):
            penalties = np.tan(p[i])
            wrong = penalties.sum() - penalties[i]
            active -= LABELS[i] * np.log(p[i, i]) / 7
            negative += wrong / penalties.sum() ** (1 - LABELS[i]) / 7
    found = active_complementary(SIMS, LABELS, tau=TAU)
    np.testing.assert_allclose(found, [active, negative], rtol=1e-5)


def test_extreme_similarities_stay_finite():
    sims = jnp.where(jnp.eye(5) > 0, -1.0, 1.0)
    value, gradient = jax.value_and_grad(whole)(sims, jnp.linspace(0, 1, 5), 1e-3)
    assert jnp.isfinite(value) and jnp.isfinite(gradient).all()


def test_equal_similarities_have_a_known_loss():
    count = 9
    expected = 2 * np.log(count) + 10 * (count - 1) * np.tan(1 / count)
    found = whole(jnp.full((count, count), 0.3), jnp.ones(count), TAU)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_contrastive_numbers_of_a_pair():
    rows, columns = (np.diagonal(p) for p in probabilities())
    np.testing.assert_allclose(info_nce_per_pair(SIMS, tau=TAU), -np.log(rows * columns), rtol=1e-5)
    np.testing.assert_allclose(pair_probabilities(SIMS, tau=TAU), (rows + columns) / 2, rtol=1e-5)
    weighted = np.mean(-LABELS * np.log(rows * columns))
    np.testing.assert_allclose(info_nce(SIMS, weights=LABELS, tau=TAU), weighted, rtol=1e-5)


@pytest.mark.parametrize(
    ("warm", "expected"), [(True, [0, 0, 1, 0.25]), (False, [0, 0.12, 0.9, 0.2])]
)
def test_labels_follow_the_probabilities_after_the_warm_up(warm, expected):
    stored = jnp.array([0.0, 0.06, 1.0, 0.25])
    found = jax.jit(refined_labels)(stored, jnp.array([0.4, 0.36, 0.5, 0.0]), warm=warm)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_probabilities_have_no_gradient():
    def total(sims):
        return jnp.sum(refined_labels(LABELS, pair_probabilities(sims, tau=TAU), warm=False))

    assert not jax.grad(total)(SIMS).any()
