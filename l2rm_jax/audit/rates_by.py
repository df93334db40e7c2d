"""Estimate the mismatch rate of each value of a column, such as the source of the pairs.

The prior of every posterior is the rate of all pairs, so the mean posterior of the pairs with one
value is biased towards that rate. The posteriors are therefore turned back into density ratios of
random and stored pairs, to which the rate of each value is fitted.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import isotonic_regression
from scipy.special import chdtri

from l2rm_jax.judging.rate import Rate

MISSING = "(missing)"
_MISSING = {"None", "nan", "NaT", "<NA>"}
_CONFIDENCE = 0.9  # that all intervals of a column contain the rates
_FEWEST, _WIDEST = 20, 0.5  # pairs with a value, and its interval, for a rate that can be told
_FLOOR = 1e-9  # of one density relative to another
_HIGHEST = 0.99  # rate of all pairs; at 1, no density of matched pairs is left
_STEPS, _DIGITS = 26, 6  # of a bisection, and of its result
_LONGEST = 40  # characters of a value in a line


class GroupRate(NamedTuple):
    """Mismatch rate of the pairs with one value.

    Attributes:
      value: the value, as text.
      pairs: number of pairs with this value.
      estimate: share of mismatched pairs, in [0, 1].
      low: lower end of the interval; all intervals of a column contain the rates in 90% of cases.
      high: upper end.
      unreliable_reason: why the rate cannot be told; "" if it can.
      differs: whether the interval excludes the rate of all other pairs together, by more than the
        error of that rate.
    """

    value: str
    pairs: int
    estimate: float
    low: float
    high: float
    unreliable_reason: str
    differs: bool


def rates_by(
    values: Sequence[Hashable] | np.ndarray,
    posterior: Float[np.ndarray, " pairs"],
    *,
    information: Float[np.ndarray, " pairs"],
    image_of: Int[np.ndarray, " pairs"],
    rate: Rate,
) -> list[GroupRate]:
    """Estimate the mismatch rate of the pairs with each value, whatever the order of the pairs.

    The pairs with a value are a mixture of matched and mismatched pairs, whose shares have the
    maximum likelihood. The posterior depends on the other captions of the image and so on their
    rate; hence it is first averaged over pairs with similar information, by isotonic regression.

    The interval follows from the profile likelihood divided by the design effect of several
    captions per image, with Bonferroni's correction for the values with at least 20 pairs. It is
    the union over the interval of `rate`, on which the density of matched pairs depends.

    Args:
      values: [pairs] value of each pair; empty text, None and NaN are one value, "(missing)".
      posterior: [pairs] probability of a mismatch (`Judgement.posterior`).
      information: [pairs] in nats (`Judgement.information`); NaN for placeholders, which count as
        mismatched.
      image_of: [pairs] row of the image; the captions of one image depend on each other.
      rate: rate of the pairs without placeholders (`Judgement.rate`), the mean of their posterior.

    Returns:
      One rate per value: the highest first, and last the unreliable ones, by number of pairs.

    References:
        Lindsay, Mixture Models: Theory, Geometry and Applications, 1995.
        Rao and Scott, The Analysis of Categorical Data from Complex Sample Surveys, JASA 1981.
    """
    names, value = _numbered(values)
    pairs, judged = np.bincount(value), np.isfinite(information)
    unjudged = 1 - np.bincount(value, judged) / pairs
    value, smooth = value[judged], _smoothed(posterior[judged], information[judged])
    tests = max(1, np.count_nonzero(pairs >= _FEWEST))
    allowed = _design_effects(smooth, value, image_of[judged], len(names))
    allowed *= chdtri(1, (1 - _CONFIDENCE) / tests) / 2  # quantile of chi squared
    ratio = smooth / max(rate.estimate, _FLOOR)
    fits = np.stack([_fit(ratio, value, overall, allowed) for overall in rate])
    ends = fits[0, 0], fits[:, 1].min(axis=0), fits[:, 2].max(axis=0)
    ends = np.round(unjudged + (1 - unjudged) * np.stack(ends), _DIGITS)
    reasons, differ = map(_why_not, pairs, ends[2] - ends[1]), _differ(pairs, *ends)
    columns = pairs.tolist(), *ends.tolist(), reasons, differ.tolist()
    return sorted(map(GroupRate, names, *columns), key=_rank)


def _rank(each: GroupRate) -> tuple:
    told = not each.unreliable_reason
    return (not told, told and -each.estimate, -each.pairs, each)


def rate_lines(column: str, rates: Sequence[GroupRate], most: int = 10) -> list[str]:
    """Return the lines of a report on the rates of the values of a column.

    Args:
      column: name of the column.
      rates: of its values, by `rates_by`.
      most: values to name, at most.
    """
    told = [each for each in rates if not each.unreliable_reason]
    lines = [f"By {_shown(column)} (90% CI for all values together):", *map(_line, told[:most])]
    if more := told[most:]:
        lines.append(
            f"{len(more):,} more: {100 * more[-1].estimate:.1f}% to {100 * more[0].estimate:.1f}%"
        )
    if small := rates[len(told) :]:
        count = f"{len(small):,} values" if len(small) > 1 else "1 value"
        sizes = dict.fromkeys(f"{each.pairs:,}" for each in (small[-1], small[0]))
        named = ", ".join([_shown(each.value) for each in small[:most]])
        etc = ", ..." if len(small) > most else ""
        lines.append(f"cannot tell for {count} with {' to '.join(sizes)} pairs: {named}{etc}")
    return lines


def _line(each: GroupRate) -> str:
    digits = int(each.estimate < 0.1)
    rate, low, high = (f"{100 * x:.{digits}f}" for x in (each.estimate, each.low, each.high))
    differs = ", differs from the other pairs" if each.differs else ""
    return f"{_shown(each.value)}: {rate}% ({low}-{high}%) of {each.pairs:,} pairs{differs}"


def _shown(text: str) -> str:
    printed = "".join(x if x.isprintable() else " " for x in text[:_LONGEST])
    return printed + "..." * (len(text) > _LONGEST)


def _why_not(pairs: int, width: float) -> str:
    if pairs < _FEWEST:
        return f"found {pairs} pairs, expected at least {_FEWEST}"
    if width > _WIDEST:
        return f"found an interval of {width:.0%}, expected at most {_WIDEST:.0%}"
    return ""


def _differ(
    pairs: np.ndarray, rate: np.ndarray, low: np.ndarray, high: np.ndarray
) -> Bool[np.ndarray, " values"]:
    rest = np.maximum(pairs.sum() - pairs, 1)
    others = (pairs @ rate - pairs * rate) / rest
    variance = (pairs * (high - low) / 2) ** 2
    error = np.sqrt(np.maximum(variance.sum() - variance, 0)) / rest
    side = np.where(others > rate, high - rate, rate - low)
    return (pairs < pairs.sum()) & (np.abs(others - rate) > np.hypot(side, error))


def _numbered(
    values: Sequence[Hashable] | np.ndarray,
) -> tuple[list[str], Int[np.ndarray, " pairs"]]:
    """Return the distinct values as text, and the position of each pair's value among them."""
    position: dict[str, int] = {}

    def number(value: Hashable) -> int:
        text = str(value)
        missing = not text or (text in _MISSING and not isinstance(value, str))
        return position.setdefault(MISSING if missing else text, len(position))

    numbers = np.array([number(value) for value in values])
    return list(position), numbers


def _smoothed(
    posterior: Float[np.ndarray, " pairs"], information: Float[np.ndarray, " pairs"]
) -> Float[np.ndarray, " pairs"]:
    """Return the mean posterior of pairs with similar information; it falls with information."""
    _, level, counts = np.unique(-information, return_inverse=True, return_counts=True)
    means = np.bincount(level, posterior) / counts
    return isotonic_regression(means, weights=counts).x[level]


def _design_effects(
    posterior: Float[np.ndarray, " pairs"],
    value: Int[np.ndarray, " pairs"],
    image: Int[np.ndarray, " pairs"],
    count: int,
) -> Float[np.ndarray, " values"]:
    """Return the variance of each rate relative to independent captions, at least 1.

    It is the larger result of two correlations between the captions of an image: in the pairs with
    the value, and in all pairs, because a value may have too few mismatches to show a correlation.
    """
    pairs = np.maximum(np.bincount(value, minlength=count), 1)
    deviation = posterior - (np.bincount(value, posterior, count) / pairs)[value]
    clusters = value * (image.max() + 1) + image
    _, first, cluster = np.unique(clusters, return_index=True, return_inverse=True)
    size, of = np.bincount(cluster), value[first]
    alone = np.bincount(value, deviation**2, count)
    shared = np.bincount(of, np.bincount(cluster, deviation) ** 2, count) - alone
    partners = np.bincount(of, size * (size - 1), count)
    per_partner = shared.sum() / max(partners.sum(), 1) / max(alone.sum() / len(value), _FLOOR)
    within = shared / np.maximum(alone, _FLOOR)
    return 1 + np.maximum(0, np.maximum(within, per_partner * partners / pairs))


def _fit(
    ratio: Float[np.ndarray, " pairs"],
    value: Int[np.ndarray, " pairs"],
    overall: float,
    allowed: Float[np.ndarray, " values"],
) -> Float[np.ndarray, "3 values"]:
    """Return the estimate, the lower and the upper end of the rate of each value.

    Relative to the density of all pairs, the density of mismatched pairs is `ratio`, and that of
    matched pairs is (1 - overall * ratio) / (1 - overall).

    Args:
      ratio: density of random pairs over that of stored pairs.
      value: number of the value of each pair.
      overall: rate of all pairs.
      allowed: drop of the log likelihood from the estimate to both ends.
    """
    overall, count = min(overall, _HIGHEST), len(allowed)
    ratio = np.minimum(ratio, (1 - _FLOOR) / max(overall, _FLOOR))

    def density(rate: np.ndarray) -> np.ndarray:
        return 1 - rate[value] + ratio * (rate[value] - overall)

    def likelihood(rate: np.ndarray) -> np.ndarray:
        return np.bincount(value, np.log(density(rate)), count)

    def rises(rate: np.ndarray) -> np.ndarray:
        return np.bincount(value, (ratio - 1) / density(rate), count) > 0

    zero, one = np.zeros(count), np.ones(count)
    best = _bisect(rises, zero, one)
    least = likelihood(best) - allowed
    low = _bisect(lambda rate: likelihood(rate) < least, zero, best)
    return np.stack([best, low, _bisect(lambda rate: likelihood(rate) >= least, best, one)])


def _bisect(
    holds: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return the points up to which a condition holds."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        below = holds(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2
