"""From evidence to a judgement: level, posterior and rate of mismatch with its interval."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.crossfit.histogram import Histogram, separation
from l2rm_jax.crossfit.information import Evidence
from l2rm_jax.crossfit.level import Units, find_level, units_at
from l2rm_jax.crossfit.posterior import Calibration, calibrate, calibrate_counts

_DRAWS = 200  # of the bootstrap


class Judgement(NamedTuple):
    """What the evidence says of each pair, and of all.

    Attributes:
      level: "pair" or "image": whether captions of an image are judged one by one or together.
      information: [pairs] at that level, in nats; the higher, the better the pair fits.
      posterior: [pairs] probability that the pair is matched.
      rate: share of mismatched pairs, in [0, 1].
      rate_low: end of the 90% interval of the rate, by bootstrap over images.
      rate_high: the other end.
      separation: AUROC of matched pairs against known negatives, estimated without truth. Near 0.5,
        nothing can be told.
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
    posterior = fitted.posterior(units.information)[units.of_pair]
    rate = float(1 - posterior.mean())
    low, high = rate_interval(units)
    against = separation(units.information, units.negatives.ravel())
    # Mismatched units score like negatives: half of the comparisons each.
    matched = max(1 - rate, 1e-3)
    return Judgement(
        level,
        units.information[units.of_pair],
        posterior,
        rate,
        min(low, rate),
        max(high, rate),
        float(np.clip((against - rate / 2) / matched, 0, 1)),
    )


def rate_interval(units: Units, draws: int = _DRAWS, seed: int = 0) -> tuple[float, float]:
    """Return a 90% interval of the rate: percentiles of a bootstrap over images.

    Each draw takes as many images as there are, with replacement, each with all its units, and fits
    the mixture anew. The negatives, 20 times as many, stay.
    """
    histogram = Histogram.over(units.information, units.negatives)
    negatives = histogram.count(units.negatives.ravel())
    position = np.unique(units.image, return_inverse=True)[1]
    images, rng = position.max() + 1, np.random.default_rng(seed)
    counts = np.stack(
        [
            histogram.count(
                units.information,
                np.bincount(rng.integers(0, images, images), minlength=images)[position],
            )
            for _ in range(draws)
        ]
    )
    fitted: Calibration = calibrate_counts(histogram.centres, counts, negatives)
    low, high = np.quantile(fitted.rate, [0.05, 0.95])
    return float(low), float(high)
