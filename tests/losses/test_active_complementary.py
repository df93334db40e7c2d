"""CRCL's loss and its labels in memory against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses.complementary import active_complementary, updated_labels
from l2rm_jax.losses.contrastive import info_nce, info_nce_per_pair, matched_probability

TAU = 0.05
RNG = np.random.default_rng(0)
SIMS = RNG.uniform(-0.3, 0.9, (7, 7)).astype(np.float32)
LABELS = np.array([0, 0.1, 0.3, 0.5, 0.7, 0.9, 1], np.float32)


def probabilities() -> list[np.ndarray]:
    """Softmax over the captions of each image, and over the images of each caption, [7, 7]."""
    odds = np.exp(SIMS.astype(np.float64) / TAU)
    return [odds / odds.sum(1, keepdims=True), (odds / odds.sum(0)).T]


def test_active_complementary_loss_is_that_of_plain_loops():
    expected = 0.0
    for p in probabilities():
        for i in range(7):
            penalties = np.tan(p[i])
            wrong = penalties.sum() - penalties[i]
            expected -= LABELS[i] * np.log(p[i, i]) / 7
            expected += 5 * wrong / penalties.sum() ** (1 - LABELS[i]) / 7
    found = active_complementary(SIMS, LABELS, tau=TAU)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_extreme_similarities_stay_finite():
    sims = jnp.where(jnp.eye(5) > 0, -1.0, 1.0)
    loss = lambda sims: active_complementary(sims, jnp.linspace(0, 1, 5), tau=1e-3)  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(sims)
    assert jnp.isfinite(value) and jnp.isfinite(gradient).all()


def test_contrastive_numbers_of_a_pair():
    rows, columns = (np.diagonal(p) for p in probabilities())
    np.testing.assert_allclose(info_nce_per_pair(SIMS, tau=TAU), -np.log(rows * columns), rtol=1e-5)
    np.testing.assert_allclose(matched_probability(SIMS, tau=TAU), (rows + columns) / 2, rtol=1e-5)
    weighted = np.mean(-LABELS * np.log(rows * columns))
    np.testing.assert_allclose(info_nce(SIMS, tau=TAU, weights=LABELS), weighted, rtol=1e-5)


@pytest.mark.parametrize(
    ("flags", "used", "after"),
    [
        ({}, [0, 0.12, 0.9, 0.2], [0, 0.12, 0.9, 0.2]),
        ({"keep": True}, [0, 0, 1, 0.25], [0, 0, 1, 0.25]),
        ({"replace": True}, [0, 0, 1, 0.25], [0.4, 0.36, 0.5, 0.0]),
        ({"keep": True, "replace": True}, [0, 0, 1, 0.25], [0.4, 0.36, 0.5, 0.0]),
    ],
    ids=["refining", "warm", "last-warm", "both"],
)
def test_labels_follow_the_predictions_with_momentum(flags, used, after):
    stored = jnp.array([0.0, 0.06, 1.0, 0.25])
    predicted = jnp.array([0.4, 0.36, 0.5, 0.0])
    update = jax.jit(lambda **flags: updated_labels(stored, predicted, momentum=0.8, **flags))
    for_loss, to_store = update(**flags)
    np.testing.assert_allclose(for_loss, used, atol=1e-6)
    np.testing.assert_allclose(to_store, after, atol=1e-6)


def test_labels_have_no_gradient():
    def total(sims):
        predicted = matched_probability(sims, tau=TAU)
        return jnp.sum(updated_labels(LABELS, predicted, momentum=0.8)[0])

    assert not jax.grad(total)(SIMS).any()
