"""Warnings about rematching: a cost that no longer separates pairs, plans that do not converge."""

import math
from collections.abc import Mapping

# The cost spread of a healthy run stays within a factor of two of its first value.
MIN_SPREAD_RATIO = 0.1
# Costs that differ by 10% of epsilon give plan entries that differ by only 10%.
MIN_SPREAD_PER_EPSILON = 0.1
# Costs of zero are indistinguishable; above this share, most of a row is.
MAX_ZERO_SHARE = 0.5
# The solver converges in every step of a healthy run; a rare failure does no harm.
MIN_CONVERGED_SHARE = 0.9


def transport_warnings(
    report: Mapping[str, float], first: Mapping[str, float], *, cost: str, epsilon: float
) -> dict[str, str]:
    """Warnings about the transport of an epoch, by name; none where it was not used.

    Args:
      report: means of the step metrics.
      first: each metric in the first epoch that reported it.
      cost: `learned` or `cosine`.
      epsilon: entropic regularisation.
    """
    warnings = {
        "cost_spread": _spread(report, first, cost, epsilon),
        "cost_zero": _zero(report, cost),
        "transport": _unconverged(report),
    }
    return {name: text for name, text in warnings.items() if text}


def _spread(
    report: Mapping[str, float], first: Mapping[str, float], cost: str, epsilon: float
) -> str | None:
    spread = report.get("cost_spread", math.inf)
    if spread < MIN_SPREAD_RATIO * first.get("cost_spread", 0.0):
        compared = f"it was {first['cost_spread']:.3g} in the first rematching epoch"
    elif spread < MIN_SPREAD_PER_EPSILON * epsilon:
        compared = f"l2rm.epsilon is {epsilon:.3g}"
    else:
        return None
    learned = "a lower l2rm.cost_learning_rate, l2rm.cost=cosine, or "
    return (
        f"the transport cost varies by only {spread:.3g} within a row ({compared}): all captions "
        "cost nearly the same, so the plan is almost uniform and rematching has no effect. "
        f"Try {learned if cost == 'learned' else ''}a smaller l2rm.epsilon; if "
        "the recalls are poor too, more train.warmup_epochs"
    )


def _zero(report: Mapping[str, float], cost: str) -> str | None:
    share = report.get("cost_zero", 0.0)
    if share <= MAX_ZERO_SHARE:
        return None
    if cost == "learned":
        why = "the learned cost has collapsed and no longer separates pairs"
        remedy = "a lower l2rm.cost_learning_rate or l2rm.cost=cosine"
    else:
        why = "all images and captions have the same embedding"
        remedy = "a lower optim.learning_rate or more train.warmup_epochs"
    return f"{share:.0%} of the transport costs are zero: {why}. Try {remedy}"


def _unconverged(report: Mapping[str, float]) -> str | None:
    share = report.get("transport_converged", 1.0)
    if share >= MIN_CONVERGED_SHARE:
        return None
    return (
        f"transport did not converge in {1 - share:.0%} of the steps: mass and marginals of the "
        "plans are only approximate. Try a larger l2rm.epsilon or a smaller l2rm.rho"
    )
