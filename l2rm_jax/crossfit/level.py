"""The level at which pairs are mismatched: pair by pair, or all captions of an image at once.

Captions stored with one image are siblings. If an image's captions were swapped as a whole, they
are mismatched together, and their mean information tells it far better than each alone. If captions
were swapped one by one, that mean says nothing. The pairs themselves say which it is: how likely is
the information that is seen if siblings share one state, and how likely if each has its own?
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.crossfit.information import Evidence
from l2rm_jax.crossfit.posterior import calibrate
from l2rm_jax.errors import ConfigError

PAIR, IMAGE = "pair", "image"


class Units(NamedTuple):
    """What is judged: pairs or images, each with the evidence on it."""

    information: Float[np.ndarray, " units"]
    negatives: Float[np.ndarray, "units negatives"]
    image: Int[np.ndarray, " units"]  # the image of each unit
    of_pair: Int[np.ndarray, " pairs"]  # the unit of each pair


def find_level(evidence: Evidence, pair_image: Int[np.ndarray, " pairs"]) -> str:
    """Return the level for which the evidence is likelier, without using any truth.

    With L the log ratio of matched to mismatched of each pair and p the rate of mismatch, the log
    likelihoods, both relative to a mismatch everywhere, are

        pair:  sum over pairs of log((1 - p) exp L + p)
        image: sum over images of log((1 - p) exp(sum of L over the captions stored with it) + p)

    Equal likelihoods (one caption an image) mean the level of the pair.
    """
    fitted = calibrate(evidence.information, evidence.negatives.ravel())
    ratio = fitted.log_ratio(evidence.information)
    matched, mismatched = np.log(np.clip([1 - fitted.rate, fitted.rate], 1e-9, 1))
    images = np.unique(pair_image, return_inverse=True)[1]
    together = np.bincount(images, ratio)
    pair, image = (np.logaddexp(matched + x, mismatched).sum() for x in (ratio, together))
    return IMAGE if image > pair else PAIR


def units_at(evidence: Evidence, pair_image: Int[np.ndarray, " pairs"], level: str) -> Units:
    """Return the units of a level; an image has the means over the captions stored with it.

    Raises:
      ConfigError: an unknown level.
    """
    if level == PAIR:
        return Units(*evidence, pair_image, np.arange(len(pair_image)))
    if level != IMAGE:
        raise ConfigError(f"cross-fitting: found the level {level!r}, expected {PAIR} or {IMAGE}")
    images, position = np.unique(pair_image, return_inverse=True)
    counts = np.bincount(position)
    columns = [evidence.information, *evidence.negatives.T]
    means = [np.bincount(position, column) / counts for column in columns]
    return Units(means[0], np.stack(means[1:], axis=1), images, position)
