"""Rematching losses: similarities must follow a transport plan instead of the stored pairs.

For every image, each function compares the softmax of its similarities with its row of the plan;
for every caption it does the same with columns (L2RM Eq. 8-10 and Tab. 3). The losses are averaged
over images and over captions, and the two averages are added. The matrices may be rectangular,
because images come from a queue. The plan is a target: callers stop its gradient.

Two details follow the reference code. The plan is clipped below at 1e-10 before it is normalised,
so a row that received no mass becomes uniform. The denominator of the softmax gets 1e-10 added.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

_SMALLEST = 1e-10


def symmetric_kl(
    sims: Float[Array, "images captions"],
    plan: Float[Array, "images captions"],
    *,
    tau: float,
) -> Float[Array, ""]:
    """Mean of KL(plan || similarities) and KL(similarities || plan), L2RM's rematching loss.

    Args:
        sims: similarities.
        plan: transport plan of the same shape, >= 0, of any total.
        tau: temperature of the softmax, > 0.

    Returns:
        A scalar.

    Raises:
        ValueError: if ``sims`` and ``plan`` are not matrices of one shape.
    """
    return 0.5 * sum(
        _divergence(target, log_q, axis) + _divergence(log_q, target, axis)
        for log_q, target, axis in _directions(sims, plan, tau)
    )


def kl(
    sims: Float[Array, "images captions"],
    plan: Float[Array, "images captions"],
    *,
    tau: float,
) -> Float[Array, ""]:
    """KL(plan || similarities), an ablation of L2RM Tab. 3. Arguments as in `symmetric_kl`."""
    return sum(
        _divergence(target, log_q, axis) for log_q, target, axis in _directions(sims, plan, tau)
    )


def soft_info_nce(
    sims: Float[Array, "images captions"],
    plan: Float[Array, "images captions"],
    *,
    tau: float,
) -> Float[Array, ""]:
    """InfoNCE with the plan as soft labels, an ablation of L2RM Tab. 3.

    It differs from `kl` by the entropy of the plan, a constant. Arguments as in `symmetric_kl`.
    """
    one, other = (
        jnp.mean(jnp.sum(jnp.exp(target) * log_q, axis=axis))
        for log_q, target, axis in _directions(sims, plan, tau)
    )
    return -(one + other)


def jensen_shannon(
    sims: Float[Array, "images captions"],
    plan: Float[Array, "images captions"],
    *,
    tau: float,
) -> Float[Array, ""]:
    """Divergence of both distributions from their mixture, an ablation of L2RM Tab. 3.

    The Jensen-Shannon divergence averages KL(plan || mixture) and KL(similarities || mixture). The
    reference code, followed here, swaps the arguments to KL(mixture || plan) and
    KL(mixture || similarities); unlike the Jensen-Shannon divergence, that average is not bounded
    by log 2. Arguments as in `symmetric_kl`.
    """
    total: Any = 0.0
    for log_q, target, axis in _directions(sims, plan, tau):
        mixture = jnp.logaddexp(log_q, target) - math.log(2)
        total += _divergence(mixture, log_q, axis) + _divergence(mixture, target, axis)
    return 0.5 * total


def _directions(sims, plan, tau):
    """Yield (log softmax of the similarities, log normalised plan, axis): images, then captions."""
    if sims.ndim != 2 or sims.shape != plan.shape:
        raise ValueError(
            f"sims, plan: found shapes {sims.shape} and {plan.shape}, expected equal matrices"
        )
    logits = sims / tau
    log_plan = jnp.log(jnp.maximum(plan, _SMALLEST))
    for axis in (1, 0):
        # log(sum + 1e-10), computed in the log domain: no overflow at small temperatures.
        total = jnp.logaddexp(logsumexp(logits, axis=axis, keepdims=True), math.log(_SMALLEST))
        log_target = log_plan - logsumexp(log_plan, axis=axis, keepdims=True)
        yield logits - total, log_target, axis


def _divergence(log_p, log_q, axis):
    """KL(p || q) along an axis, averaged over the other axis."""
    return jnp.mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=axis))
