"""Evidential losses against the written formulas in float64, where float32 loses its digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import digamma, gammaln
from scipy import special

from l2rm_jax.losses import evidential

SIZE, TAU = 128, 0.1
RNG = np.random.default_rng(0)
divergence = jax.jit(evidential.divergence)
MATCHED = (RNG.uniform(size=SIZE) < 0.6).astype(np.float32)


def scores(kind: str) -> np.ndarray:
    """Scores in [-1, 1] of a batch, at several stages of training."""
    if kind == "late":  # most evidence is next to its bounds
        t = np.where(np.eye(SIZE), 1.0, -1.0) + RNG.normal(0, 0.02, (SIZE, SIZE))
    else:
        low, high = {"early": (-0.05, 0.05), "spread": (-1, 1), "sure": (0.95, 1)}[kind]
        t = RNG.uniform(low, high, (SIZE, SIZE))
    return np.clip(t, -1, 1).astype(np.float32)


def plain_divergence(alpha, lgamma, psi):
    """KL(Dir(alpha) || Dir(1)) as the paper writes it."""
    total = alpha.sum(1, keepdims=True)
    terms = (alpha - 1) * (psi(alpha) - psi(total))
    return terms.sum(1) + lgamma(total)[:, 0] - lgamma(alpha).sum(1) - special.gammaln(SIZE)


def plain_loss(t: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss and its gradient, by the paper's formulas, in float64."""
    value, gradient = 0.0, np.zeros((SIZE, SIZE))
    for transposed in (False, True):
        e = np.exp((t.T if transposed else t).astype(np.float64) / TAU)
        label = np.eye(SIZE) * MATCHED[:, None]
        alpha, others = e + 1, e * (1 - label)
        total = alpha.sum(1, keepdims=True)
        mean = alpha / total
        error = (label - mean) ** 2 + alpha * (total - alpha) / (total**2 * (total + 1))
        divergence = plain_divergence(others + 1, special.gammaln, special.digamma)
        value += np.mean(error.sum(1) + 0.1 * divergence)
        # By alpha: the two parts of the error, and the divergence, whose psi terms cancel.
        of_error = (
            2 * (mean - label) / total - np.sum(2 * (mean - label) * mean / total, 1)[:, None]
        )
        variance = np.sum(alpha * (total - alpha), 1, keepdims=True)
        of_variance = (2 * total - 2 * alpha) / (total**2 * (total + 1))
        of_variance -= variance * (3 * total + 2) / (total**3 * (total + 1) ** 2)
        rest = others.sum(1, keepdims=True)
        of_divergence = others * special.polygamma(1, others + 1)
        of_divergence -= rest * special.polygamma(1, rest + SIZE)
        derivative = of_error + of_variance + 0.1 * of_divergence * (1 - label)
        derivative = derivative * e / TAU / SIZE
        gradient += derivative.T if transposed else derivative
    return value, gradient


@pytest.fixture(scope="module")
def compiled():
    return jax.jit(jax.value_and_grad(lambda t: evidential.evidential_loss(t, MATCHED, tau=TAU)))


@pytest.mark.parametrize("kind", ["early", "spread", "sure", "late"])
def test_loss_and_gradient_keep_their_digits(kind, compiled):
    t = scores(kind)
    value, gradient = compiled(t)
    expected, derivative = plain_loss(t)
    assert float(value) == pytest.approx(expected, rel=2e-6)
    largest = np.abs(derivative).max()
    np.testing.assert_allclose(gradient, derivative, atol=2e-5 * largest)


def test_divergence_is_more_exact_than_the_plain_formula():
    found = np.exp(scores("spread").astype(np.float64) / TAU)
    exact = plain_divergence(1 + found, special.gammaln, special.digamma)
    single = jnp.asarray(found, jnp.float32)
    ours = np.abs(divergence(single) / exact - 1).max()
    formula = jax.jit(lambda x: plain_divergence(1 + x, gammaln, digamma))
    plain = np.abs(formula(single) / exact - 1).max()
    assert ours < 2e-6 and plain > 20 * ours


def test_without_evidence_there_is_no_divergence():
    none = jnp.zeros((2, 7))
    np.testing.assert_allclose(divergence(none), 0, atol=1e-6)
    little = np.full((1, 7), 1e-3)
    exact = sum(special.gammaln([7.007])) - special.gammaln(7) - 7 * special.gammaln(1.001)
    exact += 7e-3 * (special.digamma(1.001) - special.digamma(7.007))
    found = divergence(jnp.asarray(little, jnp.float32))
    np.testing.assert_allclose(found, exact, atol=1e-6)


def test_a_pair_is_called_matched_if_its_evidence_leads_in_both_directions_together():
    t = RNG.uniform(-1, 1, (9, 9)).astype(np.float32)
    t[np.arange(6), np.arange(6)] = 0.97
    both = np.exp(t / TAU) + np.exp(t.T / TAU)
    expected = [both[i].argmax() == i for i in range(9)]
    assert 0 < sum(expected) < 9
    np.testing.assert_array_equal(evidential.called_matched(t, tau=TAU), expected)


@pytest.mark.usefixtures("unchecked_arrays")
def test_rectangular_pairs_are_refused():
    with pytest.raises(ValueError, match=r"\(3, 4\).*square"):
        evidential.query_losses(jnp.zeros((3, 4)), jnp.ones(3), tau=TAU)
