"""From evidence to a judgement: level, posterior and rate of mismatch with its interval."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.crossfit.histogram import BINS, Histogram, separation
from l2rm_jax.crossfit.information import Evidence
from l2rm_jax.crossfit.level import Units, find_level, units_at
from l2rm_jax.crossfit.posterior import calibrate, calibrate_counts

_DRAWS = 100  # of the bootstrap
_SMALLEST_WEIGHT = 1e-9


class Judgement(NamedTuple):
    """What the evidence says of each pair, and of all.

    Attributes:
      level: "pair" or "image": whether captions of an image are judged one by one or together.
      information: [pairs] at that level, in nats; the higher, the better the pair fits.
      posterior: [pairs] probability that the pair is matched.
      rate: share of mismatched pairs, in [0, 1].
      rate_low: end of the 90% interval of the rate, by bootstrap over images.
      rate_high: the other end.
      separation: AUROC of pairs, weighted by their posterior, against known negatives: how well
        matched pairs can be told from mismatched ones. Near 0.5, they cannot.
    """

    level: str
    information: Float[np.ndarray, " pairs"]
    posterior: Float[np.ndarray, " pairs"]
    rate: float
    rate_low: float
    rate_high: float
    separation: float


def judge(
    evidence: Evidence, pair_image: Int[np.ndarray, " pairs"], level: str | None = None
) -> Judgement:
    """Judge pairs by evidence from models that have not seen them.

    Args:
      evidence: on each pair.
      pair_image: row of the image that each caption is stored with.
      level: "pair", "image", or None to let the evidence decide.

    Raises:
      ConfigError: an unknown level.
      DataError: evidence that is not finite.
    """
    level = level or find_level(evidence, pair_image)
    units = units_at(evidence, pair_image, level)
    fitted = calibrate(units.information, units.negatives.ravel())
    unit_posterior = fitted.posterior(units.information)
    posterior = unit_posterior[units.of_pair]
    rate = float(1 - posterior.mean())
    # The fit counts units, the rate counts pairs; the width of the interval is the same.
    interval = np.quantile(bootstrap_rates(units), [0.05, 0.95]) - fitted.rate
    low, high = np.clip(rate + interval, 0, 1)
    return Judgement(
        level=level,
        information=units.information[units.of_pair],
        posterior=posterior,
        rate=rate,
        rate_low=min(float(low), rate),
        rate_high=max(float(high), rate),
        separation=separation(
            units.information, units.negatives.ravel(), unit_posterior + _SMALLEST_WEIGHT
        ),
    )


def bootstrap_rates(
    units: Units, draws: int = _DRAWS, seed: int = 0
) -> Float[np.ndarray, " draws"]:
    """Return the rate of mismatch of each of many draws of the images.

    A draw takes as many images as there are, with replacement, each with all its units, and fits
    the mixture anew. The negatives, 20 times as many, stay.
    """
    histogram = Histogram.over(units.information, units.negatives)
    bins = histogram.bins(units.information)
    position = np.unique(units.image, return_inverse=True)[1]
    images, rng = position.max() + 1, np.random.default_rng(seed)
    counts = np.empty((draws, BINS))
    for draw in counts:
        times = np.bincount(rng.integers(0, images, images), minlength=images)
        draw[:] = np.bincount(bins, times[position], BINS)
    negatives = histogram.count(units.negatives.ravel())
    return calibrate_counts(histogram.centres, counts, negatives).rate
