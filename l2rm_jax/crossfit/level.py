"""The level at which pairs are mismatched: pair by pair, or all captions of an image at once.

Captions stored with one image are siblings. If an image's captions were swapped as a whole, they
are mismatched together, and their mean information tells it far better than each alone. If captions
were swapped one by one, that mean hides it. Which it is shows in how siblings agree: a caption that
does not fit, among siblings that do, was swapped alone.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.crossfit.information import Evidence
from l2rm_jax.crossfit.posterior import calibrate
from l2rm_jax.errors import ConfigError

PAIR, IMAGE = "pair", "image"
_ALONE = 0.1  # share of mismatched pairs swapped alone from which on pairs are judged
_ITERATIONS = 200


class Units(NamedTuple):
    """What is judged: pairs or images, each with the evidence on it."""

    information: Float[np.ndarray, " units"]
    negatives: Float[np.ndarray, "units negatives"]
    image: Int[np.ndarray, " units"]  # the image of each unit
    of_pair: Int[np.ndarray, " pairs"]  # the unit of each pair


def find_level(evidence: Evidence, pair_image: Int[np.ndarray, " pairs"]) -> str:
    """Return the level of the image if hardly any caption was swapped alone, else of the pair.

    No truth is used, but the log ratio of matched to mismatched that the scores themselves give
    (see `posterior`), and `swap_rates`. "Hardly any" is a tenth of all mismatched pairs. With one
    caption an image, the level is that of the pair.
    """
    position = np.unique(pair_image, return_inverse=True)[1]
    if len(position) == position.max() + 1:
        return PAIR
    fitted = calibrate(evidence.information, evidence.negatives.ravel())
    together, alone = swap_rates(fitted.log_ratio(evidence.information), position)
    mismatched = together + (1 - together) * alone
    return PAIR if (1 - together) * alone > _ALONE * mismatched else IMAGE


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


def unit_of_pair(pair_image: Int[np.ndarray, " pairs"], level: str) -> Int[np.ndarray, " pairs"]:
    """Return the unit that each pair belongs to at a level, counted from 0.

    Raises:
      ConfigError: an unknown level.
    """
    if level == PAIR:
        return np.arange(len(pair_image))
    if level != IMAGE:
        raise ConfigError(f"cross-fitting: found the level {level!r}, expected {PAIR} or {IMAGE}")
    return np.unique(pair_image, return_inverse=True)[1]


def units_at(evidence: Evidence, pair_image: Int[np.ndarray, " pairs"], level: str) -> Units:
    """Return the units of a level; an image has the means over the captions stored with it.

    Raises:
      ConfigError: an unknown level.
    """
    position = unit_of_pair(pair_image, level)
    if level == PAIR:
        return Units(*evidence, pair_image, position)
    counts = np.bincount(position)
    columns = [evidence.information, *evidence.negatives.T]
    means = [np.bincount(position, column) / counts for column in columns]
    return Units(means[0], np.stack(means[1:], axis=1), np.unique(pair_image), position)
