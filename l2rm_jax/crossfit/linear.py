"""The linear detector: every pair is judged by a CCA that was fitted without its fold.

Fitted once, the model that judges a fold has learned from the mismatched pairs of the others. So
there is a nested round, *within* the other folds: models that lack two folds judge the pairs of one
of the two on behalf of the other. With the posterior from there as weights, a model is fitted to
all folds but its own, and judges it. Nothing that judges a fold, nor any weight or setting of it,
depends on how the captions of that fold are stored.
"""

from collections.abc import Callable, Sequence
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int

from l2rm_jax.console import progress_bar
from l2rm_jax.crossfit import cca
from l2rm_jax.crossfit.cca import Cca, Ridge
from l2rm_jax.crossfit.folds import check_folds
from l2rm_jax.crossfit.histogram import separation
from l2rm_jax.crossfit.information import (
    Evidence,
    Similarity,
    evidence_by_fold,
    product_similarity,
)
from l2rm_jax.crossfit.judge import Judgement, judge
from l2rm_jax.crossfit.level import find_level, units_at
from l2rm_jax.crossfit.posterior import calibrate
from l2rm_jax.crossfit.rows import BLOCK, Rows, padded_blocks

RIDGES = (Ridge(1, 1), Ridge(3, 1), Ridge(10, 3))  # of the models that lack two folds
WEIGHTED_RIDGE = Ridge(1, 1)
_SMALLEST_WEIGHT = 1e-6


def judge_pairs(
    images: Rows,
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
    image_fold: Int[np.ndarray, " images"],
    *,
    image_group: Int[np.ndarray, " images"] | None = None,
    level: str | None = None,
    seed: int = 0,
) -> Judgement:
    """Judge every pair by a weighted CCA of the other folds.

    Args:
      images: [images, di] vectors.
      captions: [pairs, dc] vectors.
      pair_image: row of the image that each caption is stored with.
      image_fold: fold of each image (see `folds.assign_folds`).
      image_group: groups of images that are never each other's negatives; None: each its own.
      level: level of the judgement and of the nested rounds; None: the evidence decides each time.
      seed: seed of the samples and the negatives.

    Raises:
      DataError: a fold has fewer than two images (or groups) with captions.
    """
    image_group = np.arange(len(image_fold)) if image_group is None else image_group
    models = fold_models(
        images, captions, pair_image, image_fold, image_group, level=level, seed=seed
    )

    def similarity_of(fold: int, pairs: np.ndarray) -> Similarity:
        return cca_similarity(models[fold], images, captions, pair_image, pairs)

    everything = np.arange(len(pair_image))
    evidence = evidence_by_fold(
        similarity_of, pair_image, image_fold, everything, image_group, seed
    )
    return judge(evidence, pair_image, level)


def fold_models(
    images: Rows,
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
    image_fold: Int[np.ndarray, " images"],
    image_group: Int[np.ndarray, " images"],
    *,
    level: str | None = None,
    seed: int = 0,
    power: float = cca.POWER,
) -> list[Cca]:
    """Fit one weighted CCA for each fold, to the other folds.

    Args:
      images, captions, pair_image, image_fold, image_group, level, seed: as in `judge_pairs`.
      power: exponent of the correlations, as in `cca.fit`.

    Raises:
      DataError: as `judge_pairs`.
    """
    check_folds(pair_image, image_fold, image_group)
    pair_fold = image_fold[pair_image]
    folds = range(int(image_fold.max()) + 1)
    lacking = _models_without_two(images, captions, pair_image, pair_fold, folds, power)
    weights = np.zeros((len(folds), len(pair_image)), np.float32)
    judgements = len(pair_image) * len(RIDGES) * (len(folds) - 1)
    with progress_bar(judgements, "cross-fitting") as bar:

        def evidence(outer: int, ridge: int, pairs: np.ndarray) -> Evidence:
            def similarity_of(fold: int, pairs: np.ndarray) -> Similarity:
                bar.update(len(pairs))
                model = lacking[frozenset((outer, fold))][ridge]
                return cca_similarity(model, images, captions, pair_image, pairs)

            return evidence_by_fold(similarity_of, pair_image, image_fold, pairs, image_group, seed)

        for outer in folds:
            inner = np.flatnonzero(pair_fold != outer)
            candidates = (evidence(outer, ridge, inner) for ridge in range(len(RIDGES)))
            weights[outer, inner] = _best_posterior(candidates, pair_image[inner], level)
    everything = np.arange(len(pair_image))
    weighted = cca.moments(images, captions, pair_image, everything, weights)
    return [cca.fit(part, images.shape[1], WEIGHTED_RIDGE, power=power) for part in weighted]


def _models_without_two(
    images: Rows,
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
    pair_fold: Int[np.ndarray, " pairs"],
    folds: Sequence[int],
    power: float,
) -> dict[frozenset[int], list[Cca]]:
    """Models of all folds but two, one for each of `RIDGES`, by these two folds."""
    parts = []
    for fold in folds:
        pairs = np.flatnonzero(pair_fold == fold)
        one = np.ones((1, len(pairs)), np.float32)
        parts.append(cca.moments(images, captions, pair_image[pairs], pairs, one)[0])
    models = {}
    for two in combinations(folds, 2):
        others = sum(part for fold, part in enumerate(parts) if fold not in two)
        models[frozenset(two)] = [
            cca.fit(others, images.shape[1], ridge, power=power) for ridge in RIDGES
        ]
    return models


def fit_weighted(
    images: Rows,
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
    weights: Float[np.ndarray, " pairs"],
    ridge: Ridge = WEIGHTED_RIDGE,
) -> Cca:
    """Fit one CCA to all pairs, weighted by their posterior: a retrieval model of its own."""
    weights = np.maximum(weights, _SMALLEST_WEIGHT)[None]
    total = cca.moments(images, captions, pair_image, np.arange(len(pair_image)), weights)
    return cca.fit(total[0], images.shape[1], ridge)


def cca_similarity(
    model: Cca,
    images: Rows,
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
    pairs: Int[np.ndarray, " n"],
) -> Similarity:
    """Return the cosines of some pairs' images and captions as a function of their rows."""
    image_rows = np.unique(pair_image[pairs])
    return product_similarity(
        image_rows,
        encode_rows(model.encode_images, images, image_rows),
        pairs,
        encode_rows(model.encode_captions, captions, pairs),
    )


def _best_posterior(candidates, pair_image, level) -> Float32[np.ndarray, " pairs"]:
    """Posterior of each pair by the evidence that best tells stored pairs from negatives."""

    def units(evidence: Evidence):
        return units_at(evidence, pair_image, level or find_level(evidence, pair_image))

    best = max(map(units, candidates), key=lambda u: separation(u.information, u.negatives.ravel()))
    fitted = calibrate(best.information, best.negatives.ravel())
    posterior = fitted.posterior(best.information)[best.of_pair]
    return np.maximum(posterior, _SMALLEST_WEIGHT).astype(np.float32)


def encode_rows(
    encode: Callable, vectors: Rows, rows: Int[np.ndarray, " n"]
) -> Float32[jax.Array, "n components"]:
    """Return the codes of some rows by `Cca.encode_images` or `Cca.encode_captions`."""
    blocks = padded_blocks(rows, BLOCK)
    return jnp.concatenate([encode(vectors[block])[:count] for block, count in blocks])
