"""Rematching losses: similarities must follow a transport plan instead of the stored pairs.

Each function compares, for every image, the softmax of its similarities with its row of the plan,
and for every caption the same in its column (L2RM Eq. 8-10 and Tab. 3). The matrices may be
rectangular: images come from a queue. Means are over images, or captions, and the two directions
are added. The plan is a target: callers stop its gradient.

As in the reference code the plan is clipped below at 1e-10 before it is normalised, so a row that
received no mass becomes uniform; and 1e-10 is added to the denominator of the softmax.
"""

import math

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
    return -sum(
        jnp.mean(jnp.sum(jnp.exp(target) * log_q, axis=axis))
        for log_q, target, axis in _directions(sims, plan, tau)
    )


def jensen_shannon(
    sims: Float[Array, "images captions"],
    plan: Float[Array, "images captions"],
    *,
    tau: float,
) -> Float[Array, ""]:
    """Divergence through the mixture of both distributions, an ablation of L2RM Tab. 3.

    The Jensen-Shannon divergence averages KL(plan || mixture) and KL(similarities || mixture). The
    reference code, followed here, has the arguments the other way round: KL(mixture || plan) and
    KL(mixture || similarities), which is not bounded by log 2. Arguments as in `symmetric_kl`.
    """
    total = 0.0
    for log_q, target, axis in _directions(sims, plan, tau):
        mixture = jnp.logaddexp(log_q, target) - math.log(2)
        total += _divergence(mixture, log_q, axis) + _divergence(mixture, target, axis)
    return 0.5 * total


def _directions(sims, plan, tau):
    """(log softmax of the similarities, log of the normalised plan, axis), images then captions."""
    if sims.ndim != 2 or sims.shape != plan.shape:
        raise ValueError(
            f"sims and plan must be matrices of one shape, found {sims.shape} and {plan.shape}"
        )
    logits = sims / tau
    log_plan = jnp.log(jnp.maximum(plan, _SMALLEST))
    for axis in (1, 0):
        # log(sum + 1e-10) without leaving the logarithm: no overflow at small temperatures.
        total = jnp.logaddexp(logsumexp(logits, axis=axis, keepdims=True), math.log(_SMALLEST))
        log_target = log_plan - logsumexp(log_plan, axis=axis, keepdims=True)
        yield logits - total, log_target, axis


def _divergence(log_p, log_q, axis):
    """KL(p || q) along an axis, the mean over the other."""
    return jnp.mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=axis))
