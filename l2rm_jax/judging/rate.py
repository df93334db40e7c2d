"""Estimate the mismatch rate and per-pair posteriors, with deliberate mismatches as the null.

A caption moved to a random other image is mismatched in any data set, so the scores of such pairs
are the null distribution. Suspicion is such a score: the higher, the worse a pair fits.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import brentq, isotonic_regression

LAMBDAS = (0.5, 0.6, 0.7, 0.8, 0.9)  # share of the null below the threshold
# Standard errors by which two estimates of the rate may differ: for the estimate, which must have a
# small error on clean data, and for its interval, which must contain the truth on noisy data.
_ERRORS, _INTERVAL_ERRORS = 3.0, 2.0
_DRAWS = 1000
_INTERVAL = (0.05, 0.95)
_FLOOR = 1e-9  # of a probability, so that its log odds are finite
# Shares of the hard known mismatches above a threshold. With smaller shares, only the most
# suspicious of them count, and real mismatches may include fewer such pairs.
_TAILS = 0.1, 0.2, 0.3, 0.5
_BOUND_ERRORS = 1.645  # standard errors from an estimate to the upper end of its 90% interval


class Rate(NamedTuple):
    """Share of pairs that match no better than random pairs, in [0, 1].

    Attributes:
      estimate: the share.
      low: lower end of its 90% confidence interval, by bootstrap over groups.
      high: upper end.
    """

    estimate: float
    low: float
    high: float


def share_of_random(
    suspicion: Float[np.ndarray, " pairs"], null: Float[np.ndarray, "..."]
) -> float:
    """Estimate the share of pairs that match no better than random pairs, without an interval.

    It is twice the share of pairs above the median of the null (`estimate_rate` with lambda 0.5).

    Args:
      suspicion: scores of the pairs.
      null: scores of known mismatches.
    """
    return min(1.0, 2 * float((suspicion > np.median(null)).mean()))


def estimate_rate(
    suspicion: Float[np.ndarray, " pairs"],
    null: Float[np.ndarray, "..."],
    group: Int[np.ndarray, " pairs"],
    seed: int,
) -> Rate:
    """Estimate the share of pairs that match no better than random pairs.

    A share lambda of the null is below its lambda-quantile, and few matched pairs are above it. The
    share of pairs above it, divided by 1 - lambda, is the share of mismatched pairs: Storey's
    estimator of the share of true null hypotheses. Matched pairs above the quantile inflate it. A
    higher lambda reduces this bias, but fewer pairs count and the variance grows. So the estimate
    uses the lowest of `LAMBDAS` whose estimate exceeds no estimate at a higher lambda by more than
    their difference varies (Lepski's rule). The bootstrap draws whole groups and chooses lambda
    again in each draw.

    Args:
      suspicion: scores of the pairs.
      null: scores of known mismatches.
      group: group of each pair.
      seed: seed of the bootstrap.

    References:
        Storey, A Direct Approach to False Discovery Rates, JRSS B 2002.
        Lepski, On a Problem of Adaptive Estimation in Gaussian White Noise, 1990.
        Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of Statistics 1979.
    """
    levels = np.array(LAMBDAS)
    above = suspicion[:, None] > np.quantile(null, levels)
    position = np.unique(group, return_inverse=True)[1]
    counts = [np.bincount(position, column) for column in above.T]
    # Groups with equal counts, of all pairs and of pairs above, are interchangeable.
    kinds, times = np.unique(
        np.column_stack([np.bincount(position), *counts]), axis=0, return_counts=True
    )
    drawn = np.random.default_rng(seed).multinomial(times.sum(), times / times.sum(), size=_DRAWS)

    def shares(times: np.ndarray) -> Float[np.ndarray, "draws lambdas"]:
        return times @ kinds[:, 1:] / (times @ kinds[:, :1]) / (1 - levels)

    draws = shares(drawn)
    varies = np.std(draws[:, :, None] - draws[:, None, :], axis=0)
    [estimate] = _lowest_consistent(shares(times[None]), _ERRORS * varies)
    low, high = np.quantile(_lowest_consistent(draws, _INTERVAL_ERRORS * varies), _INTERVAL)
    ends = estimate, min(low, estimate), max(high, estimate)
    return Rate(*(float(min(x, 1)) for x in ends))


def _lowest_consistent(
    shares: Float[np.ndarray, "draws lambdas"], varies: Float[np.ndarray, "lambdas lambdas"]
) -> Float[np.ndarray, " draws"]:
    """Return the first estimate per row that exceeds no later estimate by more than `varies`."""
    exceeds = shares[:, :, None] - shares[:, None, :] > varies
    consistent = ~np.any(np.triu(exceeds), axis=2)
    return shares[np.arange(len(shares)), np.argmax(consistent, axis=1)]


def told_apart(
    suspicion: Float[np.ndarray, " pairs"],
    null: Float[np.ndarray, "..."],
    group: Int[np.ndarray, " pairs"],
    rate: float,
) -> float:
    """Return the AUROC of known mismatches against matched pairs, less its standard error.

    Matched pairs are the pairs without the share given by the rate. The AUROC is computed on one
    score rather than a model fitted to these pairs, which would separate even identical pairs.
    Groups are independent of each other.

    Args:
      suspicion: of the pairs.
      null: of known mismatches.
      group: group of each pair.
      rate: share of mismatched pairs.
    """
    ordered = np.sort(null, axis=None)
    places = sum(np.searchsorted(ordered, suspicion, side) for side in ("left", "right"))
    below = 1 - places / (2 * len(ordered))  # of mismatched pairs, one half on average
    matched = max(1 - rate, _FLOOR)
    auroc = (below.mean() - rate / 2) / matched
    position = np.unique(group, return_inverse=True)[1]
    deviation = np.bincount(position, below - below.mean()) / matched
    return float(auroc - np.sqrt(np.sum(deviation**2)) / len(suspicion))


class Curve(NamedTuple):
    """Density ratio of null to pairs as a non-decreasing step function of the suspicion."""

    suspicion: Float[np.ndarray, " steps"]
    ratio: Float[np.ndarray, " steps"]

    def posterior(
        self, suspicion: Float[np.ndarray, "*shape"], rate: float
    ) -> Float[np.ndarray, "*shape"]:
        """Return the probability of a mismatch at each suspicion, given the rate, in [0, 1]."""
        return np.minimum(rate * self.at(suspicion), 1)

    def at(self, suspicion: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Return the ratio at each suspicion."""
        place = np.searchsorted(self.suspicion, suspicion, "right") - 1
        return self.ratio[np.clip(place, 0, len(self.suspicion) - 1)]


def density_ratio(suspicion: Float[np.ndarray, " pairs"], null: Float[np.ndarray, "..."]) -> Curve:
    """Fit the ratio by isotonic regression of "null or pair" on the suspicion.

    References:
        Barlow et al., Statistical Inference under Order Restrictions, 1972.
    """
    null = null.ravel()
    values = np.concatenate([suspicion, null])
    order = np.argsort(values, kind="stable")
    is_null = order >= len(suspicion)
    weights = np.where(is_null, len(suspicion) / len(null), 1.0)
    share = isotonic_regression(is_null.astype(float), weights=weights).x
    first = np.append(True, np.diff(share) > 0)
    share = share[first]
    return Curve(values[order][first], share / np.maximum(1 - share, 1e-12))


def scale_to_mean(
    posterior: Float[np.ndarray, " pairs"], mean: float
) -> Float[np.ndarray, " pairs"]:
    """Add one constant to all log odds so that the mean of the posterior is `mean`.

    No probability is then higher than the number of pairs can carry (`limit_to_count`), which
    lowers the mean by at most half a pair.
    """
    if mean <= 0:
        return np.zeros_like(posterior)
    odds = np.clip(posterior, _FLOOR, 1 - _FLOOR)
    odds = np.log(odds) - np.log1p(-odds)

    def shifted(by: float) -> np.ndarray:
        return 1 / (1 + np.exp(-(odds + by)))

    if mean >= shifted(50).mean():
        return limit_to_count(shifted(50))
    return limit_to_count(shifted(brentq(lambda by: shifted(by).mean() - mean, -50, 50)))


def limit_to_count(posterior: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    """Limit probabilities of a mismatch to the highest that a block of the pairs can carry.

    Of the first n pairs, the most suspicious ones, k are expected to be mismatched. They carry at
    most (k + 0.5) / (n + 1), by Jeffreys' rule: 0.95 for 10 pairs with a probability of 1. The
    block with the highest such value counts.

    References:
        Jeffreys, An Invariant Form for the Prior Probability in Estimation Problems, 1946.
    """
    expected = np.cumsum(np.sort(posterior)[::-1])
    count = np.arange(1, len(posterior) + 1)
    return np.minimum(posterior, np.max((expected + 0.5) / (count + 1), initial=0))


def false_alarms(
    posterior: Float[np.ndarray, " pairs"], order: Int[np.ndarray, " pairs"]
) -> Float[np.ndarray, " pairs"]:
    """Return the expected share of false alarms among each pair and all pairs ranked before it."""
    shares = np.empty(len(posterior))
    shares[order] = np.cumsum(1 - posterior[order]) / np.arange(1, len(order) + 1)
    return shares


def most_mismatched(
    suspicion: Float[np.ndarray, " pairs"],
    null: Float[np.ndarray, "..."],
    hard: Float[np.ndarray, " pairs"],
    trust: Float[np.ndarray, " pairs"],
    group: Int[np.ndarray, " pairs"],
    rate: Rate,
) -> float:
    """Return the largest share of mismatched pairs that is consistent with the suspicion scores.

    All pairs above two thresholds are attributed to captions of random and of similar images. One
    threshold is the median of the null; the other is lower, with a fixed share of the hard known
    mismatches above it. The share of each kind above each threshold is known, so two equations give
    the numbers of both kinds: Storey's estimator with two nulls. Matched pairs above the lower
    threshold inflate the sum, so the smallest result over several thresholds is used, each with its
    standard error over independent groups.

    The bound holds if the wrong images are at most as hard to tell from the caption's own image as
    the images of `hard`.

    Args:
      suspicion: scores of the pairs.
      null: scores of captions with random images.
      hard: score of each caption with an image that is hard to tell from its own.
      trust: weight of each hard score: probability that the captions of this image are its own.
      group: group of each pair.
      rate: share of pairs that match no better than random pairs (`estimate_rate`).

    Returns:
      The share, between the upper end of the rate and 1.

    References:
        Storey, A Direct Approach to False Discovery Rates, JRSS B 2002.
    """
    trust, position = trust / trust.sum(), np.unique(group, return_inverse=True)[1]
    order = np.argsort(hard, kind="stable")
    place = np.searchsorted(np.cumsum(trust[order]), 1 - np.array(_TAILS))
    ends = [1.0]
    for lower in hard[order[np.minimum(place, len(order) - 1)]]:
        limits = np.array([np.median(null), lower])
        above, hard_above = suspicion[:, None] > limits, hard[:, None] > limits
        share, of_hard = above.mean(axis=0), trust @ hard_above
        known = np.column_stack([[(null > limit).mean() for limit in limits], of_hard])
        if np.linalg.det(known) <= 0:
            continue  # hard mismatches are as suspicious as random ones
        both = np.linalg.solve(known.T, [1, 1])  # weight in the sum of each share above a limit
        similar = np.linalg.solve(known, share)[1]
        error = (above - share) / len(suspicion) - similar * trust[:, None] * (hard_above - of_hard)
        deviation = np.sqrt(np.sum(np.bincount(position, error @ both) ** 2))
        ends.append(share @ both + _BOUND_ERRORS * deviation)
    return float(np.clip(min(ends), rate.high, 1))
