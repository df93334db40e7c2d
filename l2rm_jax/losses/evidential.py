"""Evidential losses: similarities as evidence that a candidate is the right one (DECL).

The similarities of a query to its C candidates are turned into evidence e >= 0 for each of them.
The evidence makes a Dirichlet distribution, with parameters alpha = e + 1, over the probabilities
that the candidates are the right one. The loss wants the mean of this distribution at the label,
with little variance, and as little evidence for wrong candidates as possible. A query that is
called mismatched has no right candidate: its label is all zero.

Evidence reaches exp(10), so that the divergence from the uniform distribution, as usually written,
subtracts log-gammas near 1e5 from each other; float32 then keeps three to four digits of it. This
file computes the same number from small terms. With

    r(x) = lnG(x) - [(x - 1/2) ln x - x + ln(2 pi) / 2]     (Stirling's remainder, 0 < r <= 0.082)
    d(x) = psi(x) - ln x                                    (-0.58 <= d < 0)        for x >= 1,

E the sum of the evidence and A = E + C, Stirling's formula cancels by hand and leaves

    KL = (C - 1/2) ln(1 + E / C) - 1/2 sum ln(1 + e_j) + sum [r(1) - r(1 + e_j)] + r(A) - r(C)
         + sum e_j [d(1 + e_j) - d(A)],

where each term is 0 without evidence.

Qin et al., "Deep Evidential Learning with Noisy Correspondence for Cross-modal Retrieval", ACM MM
2022. Like the public code, the functions take similarities s in [-1, 1].
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

KL_WEIGHT = 0.1  # of the divergence
# The asymptotic series below are exact in float32 from here on; smaller numbers are raised above it
# in as many steps of one, by the recurrence of the gamma function.
_SERIES_FROM = 5
_STEPS = _SERIES_FROM - 1  # from x >= 1


def evidence(sims: Float[Array, "*shape"], *, tau: float) -> Float[Array, "*shape"]:
    """Evidence exp(s / tau) of similarities, DECL's transformation.

    Args:
        sims: similarities in [-1, 1].
        tau: temperature, > 0; 0.1 in the paper's experiments.

    Returns:
        Evidence in [exp(-1 / tau), exp(1 / tau)].
    """
    return jnp.exp(sims / tau)


def evidential_loss(
    sims: Float[Array, "pairs pairs"], matched: Float[Array, " pairs"], *, tau: float
) -> Float[Array, ""]:
    """DECL's evidential loss: the mean over pairs, both directions added.

    Args:
        sims: similarities [images, captions] in [-1, 1], square, stored pairs on the diagonal.
        matched: 1 for pairs that are called matched, 0 for the others.
        tau: temperature of `evidence`, > 0.

    Returns:
        A scalar >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    return jnp.mean(query_losses(sims, matched, tau=tau) + query_losses(sims.T, matched, tau=tau))


def query_losses(
    sims: Float[Array, "pairs pairs"], matched: Float[Array, " pairs"], *, tau: float
) -> Float[Array, " pairs"]:
    """Evidential loss of each query in one direction.

    Args:
        sims: similarities in [-1, 1], one query per row, the stored candidate on the diagonal.
        matched: 1 for queries whose stored candidate is called right, 0 for the others.
        tau: temperature of `evidence`, > 0.

    Returns:
        Per query, the squared error of the mean distribution, its variance, and a tenth of the
        `divergence` of the evidence for wrong candidates; >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    if sims.ndim != 2 or sims.shape[0] != sims.shape[1]:
        raise ValueError(f"sims: found shape {sims.shape}, expected a square matrix of pairs")
    found = evidence(sims, tau=tau)
    label = jnp.eye(len(sims)) * matched[:, None]
    total = jnp.sum(found, axis=1, keepdims=True) + len(sims)
    mean = (1 + found) / total
    error = jnp.sum((label - mean) ** 2 + mean * (1 - mean) / (total + 1), axis=1)
    return error + KL_WEIGHT * divergence(found * (1 - label))


def divergence(found: Float[Array, "queries candidates"]) -> Float[Array, " queries"]:
    """KL divergence of Dir(1 + evidence) from Dir(1), the distribution without evidence.

    Args:
        found: evidence >= 0, one query per row.

    Returns:
        One divergence per query, >= 0 up to rounding.
    """
    count = found.shape[1]
    total = jnp.sum(found, axis=1)
    rest, digamma = _remainders(1 + found)
    rest_of_total, digamma_of_total = _remainders(count + total)
    rest_of_one = 1 - math.log(2 * math.pi) / 2
    rest_of_count = math.lgamma(count) - (count - 0.5) * math.log(count) + count - 1 + rest_of_one
    return (
        (count - 0.5) * jnp.log1p(total / count)
        - jnp.sum(jnp.log1p(found) / 2 + (rest - rest_of_one), axis=1)
        + (rest_of_total - rest_of_count)
        + jnp.sum(found * (digamma - digamma_of_total[:, None]), axis=1)
    )


def called_matched(sims: Float[Array, "pairs pairs"], *, tau: float) -> Bool[Array, " pairs"]:
    """Call pairs matched if their evidence, summed over both directions, is the largest in the row.

    The sum of the evidence and its transpose is symmetric, so that rows and columns agree. The
    result depends on the batch.

    Args:
        sims: similarities [images, captions] in [-1, 1], square, stored pairs on the diagonal.
        tau: temperature of `evidence`, > 0.

    Returns:
        True for the pairs that are called matched.
    """
    found = evidence(sims, tau=tau)
    return jnp.argmax(found + found.T, axis=1) == jnp.arange(len(sims))


def _remainders(x):
    """r(x) and d(x) as the head of this file defines them, for x >= 1; relatively exact."""
    is_small = x < _SERIES_FROM
    small = jnp.minimum(x, _SERIES_FROM)  # keeps the gradient of the branch not taken finite
    inverse = 1 / jnp.where(is_small, small + _STEPS, x)
    square = inverse**2
    r = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    d = -inverse / 2 - square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square / 240)))
    for n in range(_STEPS):
        step = jnp.log1p(1 / (small + n))
        r += jnp.where(is_small, (small + n + 0.5) * step - 1, 0.0)
        d += jnp.where(is_small, step - 1 / (small + n), 0.0)
    return r, d
