"""Complementary contrastive losses: the softmax over a batch must not pick a negative.

A stored pair may be mismatched, but hardly any other caption of the batch fits the image. These
losses therefore learn only from the negatives. For every query they sum, over its negatives, a
penalty on the probability p that the softmax gives to that negative. The stored pair itself does
not enter.

Hu et al., "Cross-Modal Retrieval with Partially Mismatched Pairs", TPAMI 2023 (RCL), Eq. 14-18.

CRCL adds InfoNCE, weighed by a label per pair that it keeps in memory: `active_complementary` and
`refined_labels`. Qin et al., "Cross-modal Active Complementary Learning with Self-refining
Correspondence", NeurIPS 2023.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from l2rm_jax.losses.contrastive import info_nce

# Added to 1 - p under a logarithm or a root, as in the reference code.
_TINY = 1e-10
NEGATIVE_WEIGHT = 5.0  # of the second term of the active complementary loss, CRCL's code
MOMENTUM = 0.8  # share of the stored label in a refined one
SMALLEST_LABEL = 0.1  # lower labels become 0

# Penalties by name, functions of (p, 1 - p, q): "mae" is the probability itself, the others are
# upper bounds of it that weigh hard negatives more.
BOUNDS: dict[str, Callable] = {
    "mae": lambda p, rest, q: p,  # Eq. 14
    "log": lambda p, rest, q: -jnp.log(rest + _TINY),  # Eq. 15
    "exp": lambda p, rest, q: jnp.exp(-rest),  # Eq. 16
    "gce": lambda p, rest, q: (1 - (rest + _TINY) ** q) / q,  # Eq. 17
    "tan": lambda p, rest, q: jnp.tan(p),  # Eq. 18
}


def complementary_contrastive(
    sims: Float[Array, "pairs pairs"],
    *,
    tau: float,
    bound: str = "log",
    q: float = 0.2,
    negatives: Bool[Array, "pairs pairs"] | None = None,
) -> Float[Array, ""]:
    """Complementary contrastive loss (RCL Eq. 14-18).

    The mean over queries; the losses of both directions are added.

    Args:
        sims: similarities [images, captions], square, stored pairs on the diagonal.
        tau: temperature, > 0.
        bound: one of `BOUNDS`.
        q: exponent of "gce", in (0, 1]; the other bounds ignore it.
        negatives: True at [i, j] if candidate j enters the loss of query i; the same matrix is used
            for both directions. None takes everything off the diagonal.

    Returns:
        A scalar >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix, or ``negatives`` has another shape.
    """
    if sims.ndim != 2 or sims.shape[0] != sims.shape[1]:
        raise ValueError(f"sims: found shape {sims.shape}, expected a square matrix of pairs")
    if negatives is None:
        negatives = ~jnp.eye(len(sims), dtype=bool)
    if negatives.shape != sims.shape:
        raise ValueError(
            f"negatives: found shape {negatives.shape}, expected the shape of sims, {sims.shape}"
        )
    total: Any = 0.0
    for scores in (sims, sims.T):  # one query per row: images, then captions
        p, rest = _probabilities(scores / tau)
        total += jnp.sum(jnp.where(negatives, BOUNDS[bound](p, rest, q), 0.0)) / len(sims)
    return total


def active_complementary(
    sims: Float[Array, "pairs pairs"], labels: Float[Array, " pairs"], *, tau: float
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The two terms of CRCL's active complementary loss: the first plus 5 times the second.

    With P the softmax over the captions of image i and y its label, the terms are the means over
    the pairs, both directions added, of `-y log P_ii` and of the sum over negatives of
    `tan P_ij / (sum_j tan P_ij) ** (1 - y)`. The sum in the denominator has a gradient.

    Args:
        sims: similarities [images, captions], square, stored pairs on the diagonal.
        labels: how likely each pair matches, in [0, 1].
        tau: temperature, > 0.

    Returns:
        Two scalars >= 0; `NEGATIVE_WEIGHT` is the weight of the second one.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    active = info_nce(sims, weights=labels, tau=tau)
    own = jnp.eye(len(sims), dtype=bool)
    negative: Any = 0.0
    for scores in (sims, sims.T):
        tangents = jnp.tan(jax.nn.softmax(scores / tau, axis=1))
        wrong = jnp.sum(jnp.where(own, 0.0, tangents), axis=1)
        negative += jnp.mean(wrong / jnp.sum(tangents, axis=1) ** (1 - labels))
    return active, negative


def refined_labels(
    stored: Float[Array, " pairs"],
    probabilities: Float[Array, " pairs"],
    *,
    warm: bool | Bool[Array, ""],
) -> Float[Array, " pairs"]:
    """CRCL's labels: the stored labels, mixed with the step's probabilities after the warm-up.

    A label below 0.1 becomes 0. It recovers only if a later probability is high enough.

    Args:
        stored: stored labels of the pairs, in [0, 1].
        probabilities: `contrastive.pair_probabilities` of the pairs in this step, in [0, 1].
        warm: whether this is a warm epoch, which uses the stored labels.

    Returns:
        Labels in [0, 1].
    """
    mixed = MOMENTUM * stored + (1 - MOMENTUM) * probabilities
    labels = jnp.where(warm, stored, mixed)
    return jnp.where(labels < SMALLEST_LABEL, 0.0, labels)


def draw_negatives(key: Array, pairs: int, count: int) -> Bool[Array, "pairs pairs"]:
    """Draw `count` negatives for each query, uniformly and without replacement.

    Args:
        key: PRNG key.
        pairs: batch size: the number of queries, and of the candidates of each query.
        count: negatives per query, 1 to pairs - 1.

    Returns:
        True at [i, j] if candidate j is drawn for query i; False on the diagonal.
    """
    own = jnp.eye(pairs, dtype=bool)
    order = jnp.argsort(jnp.where(own, 2.0, jax.random.uniform(key, (pairs, pairs))), axis=1)
    return jnp.argsort(order, axis=1) < count


def _probabilities(logits):
    """Softmax p over each row, and 1 - p without cancellation where p is near 1.

    Only the highest p of a row can be near 1; its complement is the sum of the others.
    """
    p = jax.nn.softmax(logits, axis=1)
    highest = jax.nn.one_hot(jnp.argmax(logits, axis=1), logits.shape[1], dtype=bool)
    others = jnp.sum(jnp.where(highest, 0.0, p), axis=1, keepdims=True)
    return p, jnp.where(highest, others, 1 - p)
