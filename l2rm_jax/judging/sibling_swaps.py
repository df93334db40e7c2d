"""Decide whether pairs are mismatched one by one, or all captions of an image together.

Captions stored with the same image are siblings. Where the captions of an image were swapped as a
set, their mean information detects it far better than the information of each caption. Where single
captions were swapped, the mean hides them. The siblings tell the two cases apart: a caption that
does not fit, although its siblings do, was swapped alone.
"""

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.judging.rate import density_ratio, share_of_random

_ALONE = 0.1  # share of mismatched pairs swapped alone above which single captions are judged
_ITERATIONS = 200
_FLOOR = 1e-6
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
    if not swapped_together(log_ratio(information, wrong, rate), position, _ALONE):
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
    """Return the log density ratio of matched to mismatched pairs, at the information of pairs.

    Args:
      information: of the pairs, in nats.
      wrong: of known mismatches.
      rate: share of mismatched pairs.
    """
    mismatched = density_ratio(-information, -wrong).at(-information)  # relative to the pairs
    ratio = (1 / np.maximum(mismatched, _FLOOR) - rate) / max(1 - rate, _FLOOR)
    return np.log(np.clip(ratio, _SMALLEST, _LARGEST))


def swapped_together(
    log_ratio: Float[np.ndarray, " pairs"], position: Int[np.ndarray, " pairs"], alone: float
) -> bool:
    """Return whether mismatched captions were mostly swapped as whole sets.

    Args:
      log_ratio: of matched to mismatched, of each pair.
      position: image of each pair, 0 to images - 1; each has a pair.
      alone: largest share of the mismatched captions that may have been swapped alone.
    """
    together, apart = swap_rates(log_ratio, position)
    return (1 - together) * apart <= alone * (together + (1 - together) * apart)


def swap_rates(
    log_ratio: Float[np.ndarray, " pairs"], position: Int[np.ndarray, " pairs"]
) -> tuple[float, float]:
    """Return the share of images whose set was swapped, and of other captions swapped alone.

    Expectation-maximisation of a model in which all captions of an image are mismatched with
    probability q, else each of them with probability c:

        likelihood of an image = q + (1 - q) * product over its captions of ((1 - c) exp L + c)

    Args:
      log_ratio: L, log-likelihood ratio of matched to mismatched of each pair.
      position: image of each pair, 0 to images - 1; each has a pair.

    Returns:
      q and c, in [0, 1].
    """
    q = c = 0.3
    for _ in range(_ITERATIONS):
        q, c = np.clip([q, c], 1e-12, 1 - 1e-12)
        pair = np.logaddexp(np.log1p(-c) + log_ratio, np.log(c))
        kept = np.log1p(-q) + np.bincount(position, pair)
        swapped = np.exp(np.log(q) - np.logaddexp(np.log(q), kept))
        alone = (1 - swapped[position]) * np.exp(np.log(c) - pair)
        q, c = swapped.mean(), alone.sum() / max((1 - swapped[position]).sum(), 1e-12)
    return float(q), float(c)
