"""Tell whether the images and captions of new pairs resemble the reference's.

The first test does not look at the stored pairs: how well the best of many captions fits an image,
and the best of many images a caption. New vectors of another encoder, or damaged ones, have worse
best fits than the reference. The second test is a note: how well a linear classifier tells new
codes from codes of the reference.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, UInt64
from scipy.special import logsumexp

from l2rm_jax.auroc import auroc
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging.content_keys import Keys
from l2rm_jax.linear.cca import Cca

_SAMPLE = 1000  # most images
FEWEST = 50  # images for the tests and for a rate
_LEAST = 0.47  # AUROC of the best fits
_UNLIKE = 0.7  # AUROC of the classifier from which on it is reported
_ERRORS = 1.645
_RIDGE = 0.1  # of the classifier, relative to the mean variance


class Sample(NamedTuple):
    """Up to 1000 images of a set, with the smallest hashes, and one caption of each."""

    key: UInt64[np.ndarray, " q"]
    images: Float32[np.ndarray, "q di"]
    captions: Float32[np.ndarray, "q dc"]


def draw_sample(pairs: Pairs, keys: Keys) -> Sample:
    """Return some images of pairs with captions, whatever the order of the pairs."""
    order = np.argsort(keys.of_pairs(pairs.image_of), kind="stable")
    key, first = np.unique(keys.image[pairs.image_of[order]], return_index=True)
    rows = order[first[:_SAMPLE]]
    sides = pairs.images[pairs.image_of[rows]], pairs.captions[rows]
    return Sample(key[:_SAMPLE], *(np.asarray(x, np.float32) for x in sides))


def join_samples(samples: Sequence[Sample]) -> Sample:
    """Return the sample of all shards."""
    key, images, captions = map(np.concatenate, zip(*samples, strict=True))
    key, first = np.unique(key, return_index=True)
    return Sample(key[:_SAMPLE], images[first[:_SAMPLE]], captions[first[:_SAMPLE]])


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

    @property
    def reason(self) -> str:
        """Why new pairs cannot be compared with the reference; "" if they can."""
        if self.is_told:
            return ""
        return (
            "these captions fit the best of their images worse than the reference's do "
            f"(AUROC {self.fits:.2f}, expected {_LEAST})"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings of images or captions unlike the reference's."""
        return tuple(
            f"The {name} are unlike the reference's (told apart with {found:.2f}): p-values may be "
            "too small. Decide 50 pairs by eye."
            for name, found in (("images", self.images), ("captions", self.captions))
            if found > _UNLIKE
        )


def find_drift(
    sample: Sample,
    models: Iterable[Cca],
    reference: tuple[Float[np.ndarray, "folds R d"], Float[np.ndarray, "folds R d"]],
    temperature: float,
) -> Drift:
    """Compare new images and captions with the reference, by the model of each fold.

    Args:
      sample: of the new pairs.
      models: of the folds.
      reference: codes of images and of one caption of each, by the same models. As many are
        compared as both have.
      temperature: divisor of the similarities.
    """
    q, fits, told = min(len(sample.key), reference[0].shape[1]), [], []
    for model, *codes in zip(models, *reference, strict=True):
        codes = [np.asarray(x, np.float32) for x in codes]
        new = model.encode_images(sample.images[:q]), model.encode_captions(sample.captions[:q])
        both = [[np.asarray(x[:q], np.float32) for x in sides] for sides in (new, codes)]
        own = zip(both, (False, True), strict=True)
        best = [_best_fits(*sides, codes, is_own, temperature) for sides, is_own in own]
        fits.append([_auroc(*kind) for kind in zip(*best, strict=True)])
        told.append([_told_apart(*side) for side in zip(*both, strict=True)])
    least = float(np.mean(fits, axis=0).min())
    is_told = bool(least + _ERRORS / np.sqrt(6 * q) >= _LEAST)
    return Drift(least, is_told, *np.mean(told, axis=0).tolist())


def _auroc(positives: np.ndarray, negatives: np.ndarray) -> float:
    scores = np.concatenate([positives, negatives])
    return auroc(scores, np.arange(len(scores)) < len(positives))


def _best_fits(
    images: np.ndarray,
    captions: np.ndarray,
    reference: Sequence[np.ndarray],
    is_own: bool,
    temperature: float,
) -> tuple[Float[np.ndarray, " q"], ...]:
    """Return the highest similarity, and the highest information, of each image and caption.

    The information compares with the images and captions of the reference, as that of pairs does:
    among each other, images of one kind would all seem to fit badly. Pairs of the reference itself
    (`is_own`) are left out of their own comparison.
    """

    def log_means(codes: np.ndarray, others: np.ndarray) -> Float[np.ndarray, " q"]:
        scaled = codes @ others.T / temperature
        if is_own:
            np.fill_diagonal(scaled, -np.inf)
        return logsumexp(scaled, axis=1) - np.log(len(others) - is_own)

    similarity = images @ captions.T
    means = log_means(images, reference[1])[:, None] + log_means(captions, reference[0])
    information = similarity / temperature - means / 2
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
