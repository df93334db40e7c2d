"""Probability that a pair is matched, given its information and that of known negatives.

The scores of all pairs are a mixture: mismatched pairs score like the known negatives, and matched
pairs in a way that nobody knows. As information is itself an estimate of the log-likelihood ratio
of matched to mismatched, that ratio is modelled as a simple function of it,

    log p(s | matched) / p(s | mismatched) = a + b s + c s²,   c <= 0,

constant beyond its maximum, with a slope of at least one half at the mean of the negatives. If the
slope could be zero, any rate would fit pairs that all score like negatives; with this bound, such
pairs count as mismatched. Nothing is assumed of either density. The ratio vanishes towards low
scores: hardly any matched pair scores as the worst negatives do. That is what identifies the rate
of mismatch.

Expectation-maximisation (EM) alternates between the probability of each pair to be matched, and a
logistic regression of matched against mismatched pairs in which the negatives are mismatched.

References:
    Qin, Empirical Likelihood in Biased Sample Problems, Annals of Statistics 1993; Zou, Fine and
    Yandell, On Empirical Likelihood for a Semiparametric Mixture Model, Biometrika 2002: mixtures
    with an exponential ratio of densities and a sample of one component.
    Elkan and Noto, Learning Classifiers from Only Positive and Unlabeled Data, KDD 2008.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from l2rm_jax.crossfit.histogram import Histogram

_ITERATIONS = 500
_TOLERANCE = 1e-6  # of the rate, from one iteration to the next
_LEAST_SLOPE = 0.5  # of the log ratio by information; mostly 1 or more
_PRIOR = np.array([1e-6, 0.1, 0.1])  # in pairs; holds b at 1 and c at 0 where no pair speaks


class Calibration(NamedTuple):
    """A fitted mixture; scores are used as z = (score - centre) / scale."""

    rate: Float[np.ndarray, "..."]  # share of mismatched pairs
    ratio: Float[np.ndarray, "... 3"]  # coefficients of the log ratio: of 1, z and z²
    centre: float
    scale: float

    def posterior(self, scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Probability that each of the pairs is matched, in [0, 1]; not defined for draws."""
        return _posterior(self.log_ratio(scores), self.rate)

    def log_ratio(self, scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Log-likelihood ratio of matched to mismatched; not defined for draws."""
        z = (np.asarray(scores, np.float64) - self.centre) / self.scale
        return _log_ratio(z, self.ratio)


def calibrate(scores: Float[np.ndarray, " n"], negatives: Float[np.ndarray, " m"]) -> Calibration:
    """Fit the mixture.

    Args:
      scores: information of the pairs (or of the images).
      negatives: information of known negatives.

    Raises:
      DataError: a score is not finite, or there is none.
    """
    histogram = Histogram.over(scores, negatives)
    counts = histogram.count(scores)[None], histogram.count(negatives)
    fitted = calibrate_counts(histogram.centres, *counts)
    return fitted._replace(rate=fitted.rate[0], ratio=fitted.ratio[0])


def calibrate_counts(
    centres: Float[np.ndarray, " bins"],
    pairs: Float[np.ndarray, "draws bins"],
    negatives: Float[np.ndarray, " bins"],
) -> Calibration:
    """Fit one mixture for each row of `pairs`, all with the same negatives.

    Args:
      centres: score that each bin stands for.
      pairs: number of pairs in each bin.
      negatives: number of known negatives in each bin.
    """
    total = negatives.sum()
    centre = float(negatives @ centres / total)
    scale = float(np.sqrt(negatives @ (centres - centre) ** 2 / total)) or 1.0
    z = (centres - centre) / scale
    # The start takes information for the log ratio, as the prior does.
    expected = np.array([centre, scale, 0.0])
    ratio = np.tile(expected, (len(pairs), 1))
    rate = np.full(len(pairs), 0.5)
    for _ in range(_ITERATIONS):
        matched = _posterior(_log_ratio(z, ratio), rate) * pairs
        previous, rate = rate, 1 - matched.sum(axis=1) / pairs.sum(axis=1)
        ratio = _regress(z, matched, pairs - matched + negatives, ratio, expected)
        if np.abs(rate - previous).max() < _TOLERANCE:
            break
    return Calibration(rate, ratio, centre, scale)


def _posterior(log_ratio: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """[draws, n] log ratios and [draws] rates to [draws, n] probabilities of a match."""
    rate = np.clip(rate, 1e-9, 1 - 1e-9)
    return _logistic(log_ratio + np.expand_dims(np.log1p(-rate) - np.log(rate), -1))


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -500, 500)))


def _log_ratio(z: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """[n] scores and [draws, 3] coefficients to [draws, n]; constant beyond the maximum."""
    constant, slope, curvature = (ratio[..., i, None] for i in range(3))
    top = np.where(curvature < 0, slope / np.maximum(-2 * curvature, 1e-300), np.inf)
    z = np.minimum(z, np.maximum(top, -1e300))
    return constant + slope * z + curvature * z**2


def _regress(z, matched, mismatched, ratio, expected) -> np.ndarray:
    """One step of the logistic regression of matched against mismatched, by Newton's method.

    Args:
      z: [bins] scores.
      matched: [draws, bins] weights.
      mismatched: [draws, bins] weights.
      ratio: [draws, 3] coefficients so far.
      expected: [3] coefficients of the prior.
    """
    # The regression's constant is that of the log ratio plus the log odds of its own two classes.
    odds = np.log(matched.sum(axis=1).clip(1e-9)) - np.log(mismatched.sum(axis=1).clip(1e-9))
    shift = np.stack([odds, 0 * odds, 0 * odds], axis=1)
    start, target = ratio + shift, expected + shift
    # A bound that a step would cross is kept, and the coefficients before it step alone.
    least = _LEAST_SLOPE * expected[1]
    flat = np.stack([start[:, 0], np.full(len(start), least), np.zeros(len(start))], axis=1)
    curved = _newton(z, matched, mismatched, start, target, 3)
    straight = _newton(z, matched, mismatched, start * [1, 1, 0], target, 2)
    flat = _newton(z, matched, mismatched, flat, target, 1)
    best = np.where(curved[:, 2:] < 0, curved, straight)
    return np.where(best[:, 1:2] > least, best, flat) - shift


def _newton(z, matched, mismatched, start, target, free: int) -> np.ndarray:
    """A Newton step in the first `free` coefficients, halved until the likelihood rises."""
    features = np.stack([np.ones_like(z), z, z**2])

    def loss(at):
        x = at @ features
        both = matched + mismatched
        return (both * np.logaddexp(0, x) - matched * x).sum(1) + (_PRIOR * (at - target) ** 2).sum(
            1
        ) / 2

    p = _logistic(start @ features)
    weights = (matched + mismatched) * p * (1 - p)
    slope = (matched - (matched + mismatched) * p) @ features.T - _PRIOR * (start - target)
    curvature = np.einsum("ib,db,jb->dij", features, weights, features) + np.diag(_PRIOR)
    step = np.zeros_like(start)
    step[:, :free] = np.linalg.solve(curvature[:, :free, :free], slope[:, :free, None])[..., 0]
    before, size = loss(start), np.ones((len(start), 1))
    for _ in range(20):
        worse = loss(start + size * step) > before + 1e-9
        if not worse.any():
            break
        size[worse] /= 2
    return start + size * step
