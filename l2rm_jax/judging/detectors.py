"""Detectors: score the pairs of a fold without having seen them.

This file has `linear`, `cosine`, and `scores`, which reads precomputed scores. `run/detector.py`
adds detectors that train a method with a head once per fold.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from l2rm_jax.config import register_settings
from l2rm_jax.data.filters import order_warning, read_scores
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.judging.folds import FoldPairs, Folds
from l2rm_jax.judging.linear import cca_similarity, separation
from l2rm_jax.judging.log_odds import (
    Model,
    ProductSimilarity,
    compare_fold,
)
from l2rm_jax.linear.cca import Cca
from l2rm_jax.linear.rows import BLOCK, Rows, unit_rows

LINEAR, COSINE, SCORES = "linear", "cosine", "scores"
_TEMPERATURE_PAIRS = 1000  # most pairs to fit the temperature of plain cosines
_SAME = 0.99  # least correlation of scores with the cosines that they should be


class FoldTask(NamedTuple):
    """Input of a detector.

    Attributes:
      pairs: all pairs.
      folds: image, fold and group of each pair.
      drawn: the pairs of each fold, with references and known mismatches. A detector may select
        models by them, as they contain no truth; but the model that scores a fold must not be
        fitted to its pairs.
      models: a linear model per fold, fitted to the other folds.
      rows: rows of the pairs in the data, from which some may have been left out.
      images: rows of the images in the data, in which equal images may be repeated.
    """

    pairs: Pairs
    folds: Folds
    drawn: Mapping[int, FoldPairs]
    models: Sequence[Cca]
    rows: Int[np.ndarray, " pairs"]
    images: Int[np.ndarray, " images"]


class Scorer(NamedTuple):
    """Source of the models that score the folds.

    Attributes:
      name: name in reports.
      model_of: maps a fold to the model that scores it. The model is called only with images and
        captions of this fold, and only until the next call of `model_of`.
    """

    name: str
    model_of: Callable[[int], Model]


Detector = Callable[[FoldTask], Scorer]
MakeDetector = Callable[[Any], Detector]
DETECTORS: dict[str, MakeDetector] = {}


def register_detector(
    name: str, make: MakeDetector, settings: Mapping[str, Any] | None = None
) -> None:
    """Register a detector under a name that `config.judgement.detector` can select.

    Call this at the top level of a module that `config.plugins` names, so that importing the module
    registers the detector. `l2rm_jax/judging/README.md` has an example.

    Args:
      name: name of the new detector.
      make: `(config) -> Detector`, called with the config of the run or the audit.
      settings: defaults of the detector's own config fields, which become `config.own.FIELD`.

    Raises:
      ConfigError: another detector has this name already.
    """
    if name in DETECTORS:
        raise ConfigError(
            f"register_detector: {name!r} of {make.__module__} is taken by "
            f"{DETECTORS[name].__module__}"
        )
    register_settings(make, settings or {})
    DETECTORS[name] = make


def make_detector(config: Any) -> Detector:
    """Make the detector that `config.judgement.detector` names.

    Raises:
      ConfigError: there is no such detector.
    """
    name = config.judgement.detector
    if name not in DETECTORS:
        raise ConfigError(
            f"judgement.detector: found {name!r}, expected one of {', '.join(DETECTORS)}"
        )
    return DETECTORS[name](config)


def linear(task: FoldTask) -> Scorer:
    """Judge by the linear model of each fold, or by the plain cosine if it is better.

    If image and caption vectors have the same size, they may share an aligned embedding space, like
    CLIP's. Then both scorers are compared on the first fold, by the AUROC of stored pairs against
    known mismatches.
    """
    pairs, drawn = task.pairs, task.drawn

    def model_of(fold: int) -> Model:
        return Model(cca_similarity(task.models[fold], pairs.images, pairs.captions))

    own, first = Scorer(LINEAR, model_of), min(drawn)
    if pairs.images.shape[1] != pairs.captions.shape[1]:
        return own

    def quality(scorer: Scorer) -> float:
        return separation([compare_fold(drawn[first], scorer.model_of(first))])

    return max(own, cosine(task), key=quality)


def cosine(task: FoldTask) -> Scorer:
    """Judge by the cosines of vectors of one embedding space, at the best temperature.

    Raises:
      DataError: vectors of images and captions differ in size.
    """
    pairs, sizes = task.pairs, (task.pairs.images.shape[1], task.pairs.captions.shape[1])
    if sizes[0] != sizes[1]:
        raise DataError(
            f"judgement.detector={COSINE}: found image vectors with {sizes[0]} dimensions and "
            f"caption vectors with {sizes[1]}, expected vectors of one embedding space"
        )

    similarity = ProductSimilarity(
        partial(_unit_vectors, pairs.images), partial(_unit_vectors, pairs.captions)
    )
    here = task.drawn[min(task.drawn)]
    some = here.pairs[:_TEMPERATURE_PAIRS]
    rows, position = np.unique(here.position[: len(some)], return_inverse=True)
    temperature = best_temperature(np.asarray(similarity(here.images[rows], some)), position)
    return Scorer(COSINE, lambda fold: Model(similarity, temperature))


def best_temperature(
    similarities: Float32[np.ndarray, "I M"], caption_image: Int[np.ndarray, " M"]
) -> float:
    """Return the temperature at which matched pairs have the most information.

    It minimises the contrastive loss. As a function of the inverse temperature the loss has a
    single minimum, because log-sum-exp is convex. If the similarities rank every pair correctly,
    lower temperatures are always better, so the search is limited to 1/30 to 10 times their
    standard deviation.

    Args:
      similarities: of all images with all captions of a set that the model has not seen.
      caption_image: row of the image that each caption was written for.
    """
    own = np.arange(similarities.shape[1])
    spread = float(similarities.std()) or 1.0

    def loss(log_inverse: float) -> float:
        scaled = similarities * np.float32(np.exp(log_inverse) / spread)
        of_images = logsumexp(scaled, axis=1)[caption_image] - np.log(len(own))
        of_captions = logsumexp(scaled, axis=0) - np.log(len(scaled))
        return float(np.mean((of_images + of_captions) / 2 - scaled[caption_image, own]))

    found = minimize_scalar(
        loss, bounds=(np.log(0.1), np.log(30)), method="bounded", options={"xatol": 0.05}
    )
    return spread / float(np.exp(found.x))


def _unit_vectors(
    vectors: Rows, rows: Int[np.ndarray, " n"]
) -> Float32[np.ndarray, "n dimensions"]:
    return unit_rows(vectors[rows])


def scores_of_file(config: Any) -> Detector:
    """Judge by precomputed scores, such as CLIP scores.

    A posterior also needs scores of known mismatches. They can be computed only if the scores are
    the cosines of the judged vectors, up to a scale: then random pairs are scored by these cosines.

    Args:
      config: `judgement.scores` names the file: `.npy`, one number per stored pair, higher =
        better matched.

    Raises:
      ConfigError: no file is named.
    """
    path = config.judgement.scores
    if not path:
        raise ConfigError(
            f"judgement.scores: empty, expected a .npy file, as judgement.detector is {SCORES}"
        )

    def detect(task: FoldTask) -> Scorer:
        scorer = cosine(task)._replace(name=SCORES)
        pairs, directory = len(task.rows), config.data.path
        scores = read_scores(path, pairs, directory=directory)
        found = _stored_cosines(task.pairs)
        correlation = float(np.corrcoef(found, scores[task.rows])[0, 1])
        if not correlation >= _SAME:
            raise DataError(
                f"{path}: the scores are not the cosines of the vectors of these data "
                f"(correlation {correlation:.2f}), so random pairs cannot be scored in the same "
                "way and no posterior can be computed; expected scores of the encoder that made "
                "the vectors. data.filter=score accepts any scores",
                hint=order_warning(path, pairs, directory),
            )
        return scorer

    return detect


def _stored_cosines(pairs: Pairs) -> Float[np.ndarray, " pairs"]:
    found = []
    for rows in np.array_split(np.arange(len(pairs)), -(-len(pairs) // BLOCK)):
        images = unit_rows(pairs.images[pairs.image_of[rows]])
        found.append(np.einsum("nd,nd->n", images, unit_rows(pairs.captions[rows])))
    return np.concatenate(found)


register_detector(LINEAR, lambda config: linear)
register_detector(COSINE, lambda config: cosine)
register_detector(SCORES, scores_of_file)
