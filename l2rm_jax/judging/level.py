"""The level at which pairs are mismatched: pair by pair, or all captions of an image at once.

Captions stored with one image are siblings. If an image's captions were swapped as a whole, they
are mismatched together, and their mean information tells it far better than each alone. If captions
were swapped one by one, that mean hides it. Which it is shows in how siblings agree: a caption that
does not fit, among siblings that do, was swapped alone.
"""

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.judging.rate import density_ratio, share_of_random

_ALONE = 0.1  # share of mismatched pairs swapped alone from which on pairs are judged
_ITERATIONS = 200
_FLOOR = 1e-6


def matched_posterior(
    information: Float[np.ndarray, " pairs"],
    wrong: Float[np.ndarray, "pairs k"],
    pair_image: Int[np.ndarray, " pairs"],
) -> Float[np.ndarray, " pairs"]:
    """Return the probability that each pair is matched, by its information alone.

    Pairs are judged together with their siblings if hardly any seems to be swapped alone ("hardly
    any" is a tenth of all mismatched pairs), else each by itself. No truth is used. This weighs
    the pairs that a model learns from; what a person sees is judged by both levels (see `levels`).

    Args:
      information: of the pairs, by a model that has not seen them.
      wrong: information of known mismatches; siblings moved together.
      pair_image: row of the image that each caption is stored with.
    """
    images, position = np.unique(pair_image, return_inverse=True)
    alone, rate = _posterior(information, wrong)
    if len(images) == len(position):
        return alone
    odds = (1 - np.minimum(alone, 1 - _FLOOR)) / max(rate, _FLOOR)  # of mismatched to any
    ratio = (1 / np.maximum(odds, _FLOOR) - rate) / max(1 - rate, _FLOOR)
    together, apart = swap_rates(np.log(np.maximum(ratio, _FLOOR)), position)
    if (1 - together) * apart > _ALONE * (together + (1 - together) * apart):
        return alone
    counts = np.bincount(position)
    means = [np.bincount(position, column) / counts for column in (information, *wrong.T)]
    return _posterior(means[0], np.stack(means[1:], axis=1))[0][position]


def _posterior(information: np.ndarray, wrong: np.ndarray) -> tuple[Float[np.ndarray, " n"], float]:
    """Probability of being matched, and the rate of mismatch."""
    rate = share_of_random(-information, -wrong)
    return 1 - density_ratio(-information, -wrong).posterior(-information, rate), rate


def swap_rates(
    log_ratio: Float[np.ndarray, " pairs"], position: Int[np.ndarray, " pairs"]
) -> tuple[float, float]:
    """Return the share of images swapped as a whole, and of captions of the others swapped alone.

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
