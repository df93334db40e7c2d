"""The linear models: every fold is judged by a CCA that was fitted without it.

Fitted once, the model that judges a fold has learned from the mismatched pairs of the others. So
there is a nested round, *within* the other folds: models that lack two folds judge the pairs of one
of the two on behalf of the other. With the posterior from there as weights, a model is fitted to
all folds but its own, and judges it. Nothing that judges a fold, nor any weight or setting of it,
depends on how the captions of that fold are stored.
"""

from collections.abc import Callable, Mapping
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int

from l2rm_jax.console import progress_bar
from l2rm_jax.judging.fold_pairs import FoldPairs
from l2rm_jax.judging.folds import Folds
from l2rm_jax.judging.histogram import separation
from l2rm_jax.judging.information import Model, Similarity, compare_fold, product_similarity
from l2rm_jax.judging.level import matched_posterior
from l2rm_jax.linear import cca
from l2rm_jax.linear.cca import Cca, Ridge
from l2rm_jax.linear.rows import BLOCK, Rows, padded_blocks

RIDGES = (Ridge(1, 1), Ridge(3, 1), Ridge(10, 3))  # of the models that lack two folds
WEIGHTED_RIDGE = Ridge(1, 1)
POWERS = (1.0, 1.5)  # of the correlations; the second where most pairs are mismatched
_SMALLEST_WEIGHT = 1e-6


def fold_models(
    images: Rows, captions: Rows, folds: Folds, drawn: Mapping[int, FoldPairs]
) -> list[Cca]:
    """Fit one weighted CCA for each fold, to the other folds.

    Args:
      images: [images, di] vectors.
      captions: [pairs, dc] vectors.
      folds: fold of each image.
      drawn: the pairs and known mismatches of each fold.
    """
    pair_fold, numbers = folds.of_pair, range(folds.count)
    lacking = _models_without_two(images, captions, folds)
    weights = np.zeros((len(numbers), len(pair_fold)), np.float32)
    judged = len(pair_fold) * len(RIDGES) * (len(numbers) - 1)
    with progress_bar(judged, "judging: which pairs to learn from") as bar:
        for outer in numbers:
            inner = np.flatnonzero(pair_fold != outer)
            found = []
            for ridge in range(len(RIDGES)):
                models = {f: lacking[frozenset((outer, f))][ridge] for f in numbers if f != outer}
                found.append(_information(models, images, captions, drawn, bar.update))
            # By the ridge that best tells stored pairs from known mismatches.
            information, wrong = max(
                found, key=lambda x: separation(x[0][inner], x[1][inner].ravel())
            )
            posterior = matched_posterior(information[inner], wrong[inner], folds.pair_image[inner])
            weights[outer, inner] = np.maximum(posterior, _SMALLEST_WEIGHT)
    everything = np.arange(len(pair_fold))
    weighted = cca.moments(images, captions, folds.pair_image, everything, weights)
    models = []
    for outer, part in enumerate(weighted):
        kept = weights[outer].sum() / np.count_nonzero(pair_fold != outer)
        power = POWERS[bool(kept < 0.5)]
        models.append(cca.fit(part, images.shape[1], WEIGHTED_RIDGE, power=power))
    return models


def _information(
    models: Mapping[int, Cca],
    images: Rows,
    captions: Rows,
    drawn: Mapping[int, FoldPairs],
    update: Callable[[int], None],
) -> tuple[Float32[np.ndarray, " pairs"], Float32[np.ndarray, "pairs k"]]:
    """Information of the pairs of some folds and of their known mismatches; 0 elsewhere."""
    pairs = sum(len(here.pairs) for here in drawn.values())
    information = np.zeros(pairs, np.float32)
    wrong = np.zeros((pairs, next(iter(drawn.values())).wrong.shape[1]), np.float32)
    for fold, model in models.items():
        here = drawn[fold]
        similarity = cca_similarity(model, images, captions, here)
        found = compare_fold(here, Model(similarity), update)
        information[here.pairs], wrong[here.pairs] = found.stored.mean, found.wrong.mean
    return information, wrong


def _models_without_two(
    images: Rows, captions: Rows, folds: Folds
) -> dict[frozenset[int], list[Cca]]:
    """Models of all folds but two, one for each of `RIDGES`, by these two folds."""
    parts = fold_moments(images, captions, folds)
    models = {}
    for two in combinations(range(len(parts)), 2):
        others = sum(part for fold, part in enumerate(parts) if fold not in two)
        models[frozenset(two)] = [
            cca.fit(others, images.shape[1], ridge, power=POWERS[0]) for ridge in RIDGES
        ]
    return models


def fold_moments(
    images: Rows, captions: Rows, folds: Folds, weights: Float[np.ndarray, " pairs"] | None = None
) -> list[Float[np.ndarray, "d d"]]:
    """Return the second moments of the pairs of each fold (see `cca.moments`)."""
    pair_fold, parts = folds.of_pair, []
    for fold in range(folds.count):
        pairs = np.flatnonzero(pair_fold == fold)
        of_pairs = np.ones(len(pairs), np.float32) if weights is None else weights[pairs]
        image_rows = folds.pair_image[pairs]
        parts.append(cca.moments(images, captions, image_rows, pairs, of_pairs[None])[0])
    return parts


def fit_weighted(
    images: Rows,
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
    weights: Float[np.ndarray, " pairs"],
    ridge: Ridge = WEIGHTED_RIDGE,
) -> Cca:
    """Fit one CCA to all pairs, weighted by how probably they are matched: a model of its own."""
    weights = np.maximum(weights, _SMALLEST_WEIGHT)[None]
    total = cca.moments(images, captions, pair_image, np.arange(len(pair_image)), weights)
    return cca.fit(total[0], images.shape[1], ridge)


def cca_similarity(model: Cca, images: Rows, captions: Rows, here: FoldPairs) -> Similarity:
    """Return the cosines of a fold's images and captions as a function of their rows."""
    image_rows, pairs = np.sort(here.images), np.sort(here.pairs)
    return product_similarity(
        image_rows,
        encode_rows(model.encode_images, images, image_rows),
        pairs,
        encode_rows(model.encode_captions, captions, pairs),
    )


def encode_rows(
    encode: Callable, vectors: Rows, rows: Int[np.ndarray, " n"]
) -> Float32[jax.Array, "n components"]:
    """Return the codes of some rows by `Cca.encode_images` or `Cca.encode_captions`."""
    blocks = padded_blocks(rows, BLOCK)
    return jnp.concatenate([encode(vectors[block])[:count] for block, count in blocks])
