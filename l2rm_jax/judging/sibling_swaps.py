"""Decide whether pairs are mismatched one by one, or all captions of an image together.

Captions stored with the same image are siblings. Where the captions of an image were swapped as a
set, their mean information detects it far better than the information of each caption. Where single
captions were swapped, the mean hides them. The siblings tell the two cases apart: a caption that
does not fit, although its siblings do, was swapped alone.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import isotonic_regression

from l2rm_jax.judging.rate import density_ratio, share_of_random

_ALONE = 0.1  # share of mismatched pairs swapped alone above which single captions are judged
_ITERATIONS = 200
_TOLERANCE = 1e-5
_GAIN = 50  # log-likelihood by which swapped sets must explain the data better
_FLOOR, _TINY = 1e-6, 1e-12
_SMALLEST, _LARGEST = 0.005, 1e4  # density ratios
_LEAST_MATCHED = 0.02
# Bounds of the cells as shares of the mismatched pairs; matched pairs are above most of them.
_CELLS = np.concatenate([np.arange(9) / 10, 1 - np.geomspace(0.1, 5e-4, 14), [1.0]])


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
    if swap_rates(log_ratio(information, wrong, rate), position).is_apart(_ALONE):
        return alone
    counts = np.bincount(position)
    means = [np.bincount(position, column) / counts for column in (information, *wrong.T)]
    return _posterior(means[0], np.stack(means[1:], axis=1))[0][position]


def _posterior(information: np.ndarray, wrong: np.ndarray) -> tuple[Float[np.ndarray, " n"], float]:
    """Return the probability of being matched, and the mismatch rate."""
    rate = share_of_random(-information, -wrong)
    return 1 - density_ratio(-information, -wrong).posterior(-information, rate), rate


def log_ratio(
    information: Float[np.ndarray, " pairs"], wrong: Float[np.ndarray, "..."], rate: float
) -> Float[np.ndarray, " pairs"]:
    """Estimate the log density ratio of matched to mismatched at the information of each pair.

    It is linear between few cells, because sums over siblings add up an overfit.

    Args:
      information: of the pairs, in nats.
      wrong: of known mismatches.
      rate: share of mismatched pairs, in [0, 1].
    """
    edges = np.quantile(wrong, _CELLS[1:-1])
    count = np.bincount(np.searchsorted(edges, information), minlength=len(_CELLS) - 1)
    mass = np.diff(_CELLS)  # of the mismatched pairs
    share = (count + mass / 2) / (len(information) + 0.5)
    ratio = (share / mass - rate) / max(1 - rate, _LEAST_MATCHED)
    ratio = isotonic_regression(ratio, weights=mass).x
    middle = np.quantile(wrong, (_CELLS[1:] + _CELLS[:-1]) / 2)
    return np.interp(information, middle, np.log(np.clip(ratio, _SMALLEST, _LARGEST)))


class SwapRates(NamedTuple):
    """Shares of images and captions that were swapped, by the model of `swap_rates`.

    Attributes:
      together: q, share of the images whose captions were swapped as a set.
      alone: c, share of the other captions that were swapped alone.
      gain: log-likelihood, minus the highest without swapped sets, in nats.
    """

    together: float
    alone: float
    gain: float

    @property
    def has_sets(self) -> bool:
        """Whether swapped sets explain the data clearly better than single captions alone."""
        return self.gain > _GAIN

    def is_apart(self, share: float) -> bool:
        """Return whether more than this share of the mismatched captions was swapped alone."""
        apart = (1 - self.together) * self.alone
        return apart > share * (self.together + apart)


def swap_rates(
    log_ratio: Float[np.ndarray, " pairs"], position: Int[np.ndarray, " pairs"]
) -> SwapRates:
    """Estimate how many sets of captions and how many single captions were swapped.

    Expectation-maximisation of a model in which all captions of an image are mismatched with
    probability q, else each of them with probability c:

        likelihood of an image = q + (1 - q) * product over its captions of ((1 - c) exp L + c)

    Args:
      log_ratio: L, log-likelihood ratio of matched to mismatched of each pair.
      position: image of each pair, 0 to images - 1; each has a pair.
    """
    single, both = (_fit(log_ratio, position, q) for q in (0.0, 0.3))
    return SwapRates(*both[:2], both[2] - single[2])


def _fit(log_ratio: np.ndarray, position: np.ndarray, q: float) -> tuple[float, float, float]:
    """Return q, c and the log-likelihood, from a start; a q of 0 stays 0."""
    c = 0.3
    for _ in range(_ITERATIONS):
        c = np.clip(c, _TINY, 1 - _TINY)
        pair = np.logaddexp(np.log1p(-c) + log_ratio, np.log(c))
        kept = np.log1p(-min(q, 1 - _TINY)) + np.bincount(position, pair)
        total = np.logaddexp(np.log(max(q, _TINY)), kept) if q else kept
        swapped = 1 - np.exp(kept - total)
        matched = 1 - swapped[position]
        before = q, c
        q, c = (
            swapped.mean(),
            (matched * np.exp(np.log(c) - pair)).sum() / max(matched.sum(), _TINY),
        )
        if max(abs(q - before[0]), abs(c - before[1])) < _TOLERANCE:
            break
    return float(q), float(c), float(total.sum())
