"""Tell whether the images and captions of new pairs resemble those of a reference.

The first test does not look at the stored pairs: how well the best of many captions fits an image,
and the best of many images a caption. New vectors of another encoder, or damaged ones, have worse
best fits than the reference. The second test is a note: how well a linear classifier tells new
codes from codes of the reference.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from l2rm_jax.auroc import auroc

FEWEST = 50  # images for the tests and for a rate
LEAST = 0.47  # AUROC of the best fits
UNLIKE = 0.7  # AUROC of the classifier from which on it is reported
_ERRORS = 1.645
_RIDGE = 0.1  # of the classifier, relative to the mean variance


class Drift(NamedTuple):
    """Results of both tests.

    Attributes:
      fits: share of (new, reference) best fits whose new one is better; the least of four kinds.
      is_told: whether new pairs may be compared with the reference.
      images: AUROC of new images against the reference's.
      captions: the same for captions.
    """

    fits: float
    is_told: bool
    images: float
    captions: float


Codes = tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n d"]]  # of images, of captions


def find_drift(new: list[Codes], reference: list[Codes], temperature: float) -> Drift:
    """Compare new images and captions with the reference, by the model of each fold.

    Args:
      new: for each fold, codes of images and of one caption of each, in random order.
      reference: the same of the reference, by the same model. As many are compared as both have.
      temperature: divisor of the similarities.
    """
    q = min(len(new[0][0]), len(reference[0][0]))
    pairs = [
        tuple((images[:q], captions[:q]) for images, captions in both)
        for both in zip(new, reference, strict=True)
    ]
    fits = np.mean(
        [
            [
                _auroc(*kind)
                for kind in zip(*(_best_fits(*x, temperature) for x in both), strict=True)
            ]
            for both in pairs
        ],
        axis=0,
    ).min()
    told = [np.mean([_told_apart(a[side], b[side]) for a, b in pairs]) for side in (0, 1)]
    error = _ERRORS / np.sqrt(6 * q)
    return Drift(float(fits), bool(fits + error >= LEAST), *map(float, told))


def _auroc(positives: np.ndarray, negatives: np.ndarray) -> float:
    scores = np.concatenate([positives, negatives])
    return auroc(scores, np.arange(len(scores)) < len(positives))


def _best_fits(
    images: np.ndarray, captions: np.ndarray, temperature: float
) -> tuple[Float[np.ndarray, " q"], ...]:
    """Return the highest similarity, and the highest information, of each image and caption."""
    similarity = images @ captions.T
    scaled = similarity / temperature
    means = [logsumexp(scaled, axis=axis, keepdims=True) for axis in (0, 1)]
    information = scaled - (means[0] + means[1]) / 2
    return tuple(x.max(axis=axis) for x in (similarity, information) for axis in (0, 1))


def _told_apart(new: np.ndarray, reference: np.ndarray) -> float:
    """Return the AUROC of a linear classifier, each half by the one fitted to the other half."""
    scores, halves = [], [np.arange(len(new)) % 2 == half for half in (0, 1)]
    for fit, test in (halves, halves[::-1]):
        both = np.concatenate([x[fit] - x[fit].mean(axis=0) for x in (new, reference)])
        covariance = both.T @ both / len(both)
        covariance += _RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        direction = np.linalg.solve(covariance, new[fit].mean(axis=0) - reference[fit].mean(axis=0))
        scores.append(_auroc(new[test] @ direction, reference[test] @ direction))
    return float(np.mean(scores))
