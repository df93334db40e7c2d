"""Means over seeds, and paired differences with Student's interval."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


class Mean(NamedTuple):
    """Mean of `seeds` values, their standard deviation and the standard error of the mean.

    Both are 0 for a single value, of which no spread is known.
    """

    mean: float
    deviation: float
    error: float
    seeds: int


class Difference(NamedTuple):
    """Mean difference of pairs of runs, its 95% interval, and the number of pairs.

    The interval is infinite for a single pair.
    """

    mean: float
    low: float
    high: float
    pairs: int


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of at least one value."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Mean(float(np.mean(values)), deviation, deviation / len(values) ** 0.5, len(values))


def paired_difference(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Return how far `one` is ahead of `other` on the seeds that both have; None without any.

    The interval is Student's t for the mean of paired differences.

    Args:
      one: value by seed.
      other: value by seed.
    """
    shared = sorted(one.keys() & other.keys())
    if not shared:
        return None
    found = mean_of([one[seed] - other[seed] for seed in shared])
    if len(shared) == 1:
        return Difference(found.mean, -np.inf, np.inf, 1)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(shared) - 1)) * found.error
    return Difference(found.mean, found.mean - half, found.mean + half, len(shared))


def within_error(means: Sequence[Mean | None]) -> list[str]:
    """Return for each mean: "best", "close" (within the best one's standard error) or "".

    None is a missing cell. A best mean of one seed has no error, so none is close to it.
    """
    known = [each for each in means if each]
    if not known:
        return [""] * len(means)
    best = max(known, key=lambda each: each.mean)

    def kind(each: Mean | None) -> str:
        if each is best:
            return "best"
        return "close" if each and best.error and each.mean >= best.mean - best.error else ""

    return [kind(each) for each in means]
