"""What judges a fold: a CCA of the other folds, or the plain cosine of aligned vectors."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from l2rm_jax.audit.stages import Stages
from l2rm_jax.crossfit.cca import Cca
from l2rm_jax.crossfit.histogram import separation
from l2rm_jax.crossfit.information import (
    TEMPERATURE,
    Evidence,
    Similarity,
    best_temperature,
    fold_evidence,
    product_similarity,
)
from l2rm_jax.crossfit.linear import cca_similarity, fold_models
from l2rm_jax.crossfit.rows import Rows, unit_rows

POWER = 1.0  # of the correlations; more is better only where most pairs are mismatched
LINEAR, COSINE = "linear", "cosine"
_COMPARED = 5000  # pairs on which the two are compared, at most
_CCA = Cca(0, 0, 0, 0, 0)

# Called with a fold and pairs of it, ascending, returns the similarity that judges them, and its
# temperature.
ModelOf = Callable[[int, np.ndarray], tuple[Similarity, float]]


class Scorer(NamedTuple):
    """What judges the pairs.

    Attributes:
      name: what it is called in the report.
      model_of: the model of each fold.
      unit: similarities are counted in it; the temperature.
    """

    name: str
    model_of: ModelOf
    unit: float = TEMPERATURE


def linear_scorer(
    images: Rows,
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
    image_fold: Int[np.ndarray, " images"],
    image_group: Int[np.ndarray, " images"],
    seed: int,
    stages: Stages,
) -> tuple[Scorer, list[Cca]]:
    """Fit a CCA for each fold; return it, or the plain cosine if that scores better; and the CCAs.

    Args as in `crossfit.linear.judge_pairs`; `stages` keeps the models. Vectors of images and
    captions of the same size may be those of one aligned space, as CLIP's.
    """
    folds = int(image_fold.max()) + 1
    models = stages(
        "models",
        [_CCA] * folds,
        lambda: fold_models(
            images, captions, pair_image, image_fold, image_group, seed=seed, power=POWER
        ),
    )
    models = [Cca(*map(np.asarray, model)) for model in models]

    def cca_model(fold: int, pairs: np.ndarray) -> tuple[Similarity, float]:
        return cca_similarity(models[fold], images, captions, pair_image, pairs), TEMPERATURE

    linear = Scorer(LINEAR, cca_model)
    if images.shape[1] != captions.shape[1]:
        return linear, models
    fold = image_fold[pair_image]
    pairs = np.flatnonzero(fold == fold.min())[:_COMPARED]
    temperature = _temperature(images, captions, pair_image, pairs)

    def cosine_model(_: int, pairs: np.ndarray) -> tuple[Similarity, float]:
        return cosine_similarity(images, captions, pair_image, pairs), temperature

    cosine = Scorer(COSINE, cosine_model, temperature)

    def quality(scorer: Scorer) -> float:
        similarity, of = scorer.model_of(int(fold.min()), pairs)
        found: Evidence = fold_evidence(similarity, pair_image, pairs, image_group, seed, of)
        return separation(found.information, found.negatives.ravel())

    return max((linear, cosine), key=quality), models


def cosine_similarity(
    images: Rows,
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
    pairs: Int[np.ndarray, " n"],
) -> Similarity:
    """Return the cosines of the vectors of some pairs as a function of their rows."""
    rows = np.unique(pair_image[pairs])
    return product_similarity(rows, unit_rows(images[rows]), pairs, unit_rows(captions[pairs]))


def _temperature(images: Rows, captions: Rows, pair_image: np.ndarray, pairs: np.ndarray) -> float:
    some = pairs[: _COMPARED // 5]
    rows, position = np.unique(pair_image[some], return_inverse=True)
    similarities = np.asarray(cosine_similarity(images, captions, pair_image, some)(rows, some))
    return best_temperature(similarities, position)
