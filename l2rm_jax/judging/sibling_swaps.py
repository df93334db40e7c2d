"""Decide whether pairs are mismatched one by one, or all captions of an image together.

Captions stored with the same image are siblings. Where the captions of an image were swapped as a
set, their mean information detects it far better than the information of each caption. Where single
captions were swapped, the mean hides them. The siblings tell the two cases apart: a caption that
does not fit, although its siblings do, was swapped alone.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.judging.rate import Curve, density_ratio, share_of_random

_ALONE = 0.1  # share of mismatched pairs swapped alone above which single captions are judged
_ITERATIONS = 200
_TOLERANCE = 1e-5
_GAIN = 20  # log-likelihood by which swapped sets must explain the data better
_FLOOR, _TINY = 1e-6, 1e-12
_SMALLEST, _LARGEST = 0.005, 1e4  # density ratios


def matched_posterior(
    information: Float[np.ndarray, " pairs"],
    wrong: Float[np.ndarray, "pairs k"],
    image_of: Int[np.ndarray, " pairs"],
) -> Float[np.ndarray, " pairs"]:
    """Estimate the probability that each pair is matched, from its information.

    It is estimated from the mean information of the siblings if at most a tenth of the mismatched
    captions seem to have been swapped alone, and from the caption's own information otherwise. It
    weights the pairs in fits. Reports do not show it: they combine both cases (see `suspicion`).

    Args:
      information: [pairs] in nats, by models that have not seen the pairs.
      wrong: [pairs, k] information of known mismatches, for which siblings were moved together.
      image_of: [pairs] row of the image that each caption is stored with.

    Returns:
      [pairs] probabilities, in [0, 1]. The true matches are not used.
    """
    images, position = np.unique(image_of, return_inverse=True)
    alone, rate = _posterior(information, wrong)
    if len(images) == len(position):
        return alone
    ratio = LogRatio.of(information, wrong, rate).at(information)
    if swap_rates(ratio, position).is_apart(_ALONE):
        return alone
    counts = np.bincount(position)
    means = [np.bincount(position, column) / counts for column in (information, *wrong.T)]
    return _posterior(means[0], np.stack(means[1:], axis=1))[0][position]


def _posterior(information: np.ndarray, wrong: np.ndarray) -> tuple[Float[np.ndarray, " n"], float]:
    """Return the probability of being matched, and the mismatch rate."""
    rate = share_of_random(-information, -wrong)
    return 1 - density_ratio(-information, -wrong).posterior(-information, rate), rate


class LogRatio(NamedTuple):
    """Log density ratio of matched to mismatched pairs as a function of the information.

    Attributes:
      curve: density ratio of mismatched pairs to all.
      rate: share of mismatched pairs.
    """

    curve: Curve
    rate: float

    @classmethod
    def of(cls, information: np.ndarray, wrong: np.ndarray, rate: float) -> "LogRatio":
        """Estimate the ratio.

        Args:
          information: of the pairs, in nats.
          wrong: of known mismatches.
          rate: share of mismatched pairs.
        """
        return cls(density_ratio(-information, -wrong), rate)

    def at(self, information: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Return the log ratio at this information."""
        mismatched = np.maximum(self.curve.at(-information), _FLOOR)
        ratio = (1 / mismatched - self.rate) / max(1 - self.rate, _FLOOR)
        return np.log(np.clip(ratio, _SMALLEST, _LARGEST))


class SwapRates(NamedTuple):
    """Shares of images and captions that were swapped.

    All captions of an image are mismatched with probability q, else each with probability c:

        likelihood of an image = q + (1 - q) * product over its captions of ((1 - c) exp L + c)

    with the log-likelihood ratio L of matched to mismatched of each caption.

    Attributes:
      together: q, share of the images whose captions were swapped as a set.
      alone: c, share of the other captions that were swapped alone.
    """

    together: float
    alone: float

    def is_apart(self, share: float) -> bool:
        """Return whether more than this share of the mismatched captions was swapped alone."""
        apart = (1 - self.together) * self.alone
        return apart > share * (self.together + apart)

    def terms(self, log_ratio: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Return the log of each caption's factor in the likelihood of an image."""
        q, c = np.clip(self, _TINY, 1 - _TINY)
        return np.logaddexp(np.log1p(-c) + log_ratio, np.log(c))

    def posterior(self, total: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Return the probability that a set was swapped, from the sum of its captions' terms."""
        if not self.together:
            return np.zeros_like(total)
        q = min(self.together, 1 - _TINY)
        return np.exp(np.log(q) - np.logaddexp(np.log(q), np.log1p(-q) + total))

    def log_likelihood(self, terms: np.ndarray, position: np.ndarray) -> float:
        """Return the log-likelihood of all images."""
        q = np.clip(self.together, _TINY, 1 - _TINY)
        total = np.bincount(position, terms)
        return float(np.logaddexp(np.log(q), np.log1p(-q) + total).sum())


def swap_rates(
    log_ratio: Float[np.ndarray, " pairs"], position: Int[np.ndarray, " pairs"], together: bool = True
) -> SwapRates:
    """Estimate the shares by expectation-maximisation.

    Args:
      log_ratio: of matched to mismatched, of each pair.
      position: image of each pair, 0 to images - 1; each has a pair.
      together: whether sets may have been swapped.
    """
    q, c = 0.3 if together else 0.0, 0.3
    for _ in range(_ITERATIONS):
        before = q, c
        rates = SwapRates(q, c)
        terms = rates.terms(log_ratio)
        swapped = rates.posterior(np.bincount(position, terms))
        alone = (1 - swapped[position]) * np.exp(np.log(max(c, _TINY)) - terms)
        q, c = swapped.mean(), alone.sum() / max((1 - swapped[position]).sum(), _TINY)
        if max(abs(q - before[0]), abs(c - before[1])) < _TOLERANCE:
            break
    return SwapRates(float(q), float(c))


def likely_rates(
    log_ratio: Float[np.ndarray, " pairs"], position: Int[np.ndarray, " pairs"]
) -> SwapRates:
    """Estimate the shares; sets count only if they explain the data clearly better."""
    single = swap_rates(log_ratio, position, together=False)
    if position.max() + 1 == len(position):
        return single
    both = swap_rates(log_ratio, position)
    gain, base = (r.log_likelihood(r.terms(log_ratio), position) for r in (both, single))
    return both if gain - base > _GAIN else single
