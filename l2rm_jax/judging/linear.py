"""Fit the linear models: each fold is judged by a model that was fitted without it.

A nested round *within* the other folds says which of their pairs are probably matched: models
fitted without two folds judge the pairs of one of the two on behalf of the other. These weights are
the start of a fit to a transport plan of the other folds (`transport_em`), whose model judges the
fold. Where pairs are many and most seem to be matched, they weight a plain fit instead. Neither the
model of a fold nor its weights or settings depend on how the captions of that fold are stored.

Fits do not improve beyond some number of pairs, so they use samples: one for the nested round, a
smaller one to select its ridge, and one for the plan.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int, UInt64

from l2rm_jax.auroc import binned_auroc
from l2rm_jax.console import progress_bar
from l2rm_jax.judging.folds import FoldPairs, Folds, first_pairs
from l2rm_jax.judging.log_odds import Compared, Model, ProductSimilarity, compare_fold
from l2rm_jax.judging.sibling_swaps import matched_posterior
from l2rm_jax.judging.transport_em import (
    FEW,
    StoredPairs,
    fit_by_transport,
    plan_ridge,
    stored_pairs,
)
from l2rm_jax.linear import cca
from l2rm_jax.linear.cca import Cca, Ridge
from l2rm_jax.linear.rows import BLOCK, Rows, padded_blocks
from l2rm_jax.linear.span import ridge_in, span, whole
from l2rm_jax.linear.threads import limit_threads

RIDGES = (Ridge(1, 1), Ridge(3, 1), Ridge(10, 3))  # for the models fitted without two folds
_WEIGHTED_RIDGE = Ridge(1, 1)
_POWER = 1.0  # of the correlations
_SMALLEST_WEIGHT = 1e-6
_FITTED = 200_000  # most pairs to fit a model to, unless the next line allows more
_FITTED_A_DIMENSION = 200  # most pairs per dimension
_OF_RIDGE = 2500  # pairs of a fold on which ridges are compared
_CLEAN = 0.7  # share of matched pairs above which a plan adds nothing to many pairs
_OF_PLAN = 30_000  # most pairs whose plan a model is fitted to


class FoldModels(NamedTuple):
    """The models that judge the folds.

    Attributes:
      models: one per fold, fitted to the other folds.
      weights: [folds, pairs] probability that each pair is matched, by models that have not seen
        both folds; 0 for the pairs of this fold, and for those outside of the sample.
    """

    models: list[Cca]
    weights: Float32[np.ndarray, "folds pairs"]


def fold_models(
    images: Rows,
    captions: Rows,
    folds: Folds,
    drawn: Mapping[int, FoldPairs],
    group_key: UInt64[np.ndarray, " images"],
) -> FoldModels:
    """Fit one model per fold, to the transport plan of the other folds.

    Args:
      images: [images, di] vectors.
      captions: [pairs, dc] vectors.
      folds: fold of each image.
      drawn: the pairs and known mismatches of each fold.
      group_key: hash of the group of each image.
    """
    drawn = fitted_pairs(drawn, images, captions)
    of_images, of_captions = span(images), span(captions)
    images, captions = of_images.rows, of_captions.rows
    ridges = [ridge_in(ridge, of_images, of_captions) for ridge in RIDGES]
    rows = np.sort(np.concatenate([here.pairs for here in drawn.values()]))
    pair_fold, numbers = folds.of_pair, range(folds.count)
    lacking = _models_without_two(images, captions, folds, drawn, ridges)
    compared = {fold: first_pairs(here, _OF_RIDGE) for fold, here in drawn.items()}
    few_pairs = sum(len(here.pairs) for here in compared.values())
    weights = np.zeros((len(numbers), len(pair_fold)), np.float32)
    is_weak = []
    with progress_bar(len(rows) * (len(numbers) - 1), "judging: which pairs to learn from") as bar:
        for outer in numbers:
            judges = [
                {f: lacking[frozenset((outer, f))][ridge] for f in numbers if f != outer}
                for ridge in range(len(RIDGES))
            ]
            samples = [_compare(models, images, captions, compared) for models in judges]
            best = int(np.argmax([separation(sample.values()) for sample in samples]))
            is_weak.append(best == 0)
            found = samples[best]
            if few_pairs < len(rows):
                found = _compare(judges[best], images, captions, drawn)
            inner = rows[pair_fold[rows] != outer]
            of_inner = _at_pairs(found, drawn, len(pair_fold))
            posterior = matched_posterior(*(x[inner] for x in of_inner), folds.image_of[inner])
            bar.update(len(inner))
            weights[outer, inner] = np.maximum(posterior, _SMALLEST_WEIGHT)
    few = {fold: first_pairs(here, _OF_PLAN // (len(drawn) - 1)) for fold, here in drawn.items()}
    counts = np.count_nonzero(weights, axis=1)
    clean = np.flatnonzero((counts > FEW) & (weights.sum(axis=1) > _CLEAN * counts))
    plain = {}
    if len(clean):  # one pass over the pairs for all these folds
        part = cca.moments(images, captions, folds.image_of[rows], rows, weights[clean][:, rows])
        plain = dict(zip(clean.tolist(), part, strict=True))
    weighted_ridge = ridge_in(_WEIGHTED_RIDGE, of_images, of_captions)
    models = []
    with (
        progress_bar(len(numbers), "judging: models of the folds") as bar,
        limit_threads(),  # more threads would mostly wait
    ):
        for outer in numbers:
            if outer in plain:
                model = cca.fit(plain[outer], images.shape[1], weighted_ridge, power=_POWER)
            else:
                others = [here for fold, here in few.items() if fold != outer]
                pairs = join_pairs(others, group_key)
                start = weights[outer, pairs.captions]
                ridge = plan_ridge(len(start), is_weak[outer])
                model = fit_by_transport(images, captions, pairs, start, ridge).model
            models.append(whole(model, of_images, of_captions))
            bar.update(1)
    return FoldModels(models, weights)


def join_pairs(parts: Sequence[FoldPairs], group_key: UInt64[np.ndarray, " images"]) -> StoredPairs:
    """Join the pairs of some folds for `fit_by_transport`."""
    counts = [len(here.images) for here in parts]
    starts = np.cumsum(counts) - counts
    return stored_pairs(
        np.concatenate([here.images for here in parts]),
        np.concatenate([here.pairs for here in parts]),
        np.concatenate([here.position + start for here, start in zip(parts, starts, strict=True)]),
        group_key,
    )


def fitted_pairs(
    drawn: Mapping[int, FoldPairs], images: Rows, captions: Rows
) -> dict[int, FoldPairs]:
    """Return the pairs of each fold that models are fitted to: all, or a sample of many pairs."""
    dimensions = images.shape[1] + captions.shape[1]
    most = max(_FITTED, _FITTED_A_DIMENSION * dimensions) // len(drawn)
    return {fold: first_pairs(here, most) for fold, here in drawn.items()}


def _compare(
    models: Mapping[int, Cca], images: Rows, captions: Rows, drawn: Mapping[int, FoldPairs]
) -> dict[int, Compared]:
    """Compare pairs of each fold by its model."""
    return {
        fold: compare_fold(drawn[fold], Model(cca_similarity(model, images, captions)))
        for fold, model in models.items()
    }


def separation(found: Iterable[Compared]) -> float:
    """Return the AUROC of stored pairs against known mismatches."""
    found = list(found)
    stored, wrong = (
        np.concatenate([getattr(each, kind).mean.ravel() for each in found])
        for kind in ("stored", "wrong")
    )
    return binned_auroc(stored, wrong)


def _at_pairs(
    found: Mapping[int, Compared], drawn: Mapping[int, FoldPairs], pairs: int
) -> tuple[Float32[np.ndarray, " pairs"], Float32[np.ndarray, "pairs k"]]:
    """Return the information of the pairs and of known mismatches of some folds; 0 elsewhere."""
    information = np.zeros(pairs, np.float32)
    wrong = np.zeros((pairs, next(iter(drawn.values())).wrong.shape[1]), np.float32)
    for fold, one in found.items():
        rows = drawn[fold].pairs
        information[rows], wrong[rows] = one.stored.mean, one.wrong.mean
    return information, wrong


def _models_without_two(
    images: Rows,
    captions: Rows,
    folds: Folds,
    drawn: Mapping[int, FoldPairs],
    ridges: list[Ridge],
) -> dict[frozenset[int], list[Cca]]:
    """Fit models to all folds but two, one per ridge; keys are the two folds left out."""
    parts = fold_moments(images, captions, folds.image_of, drawn)
    models = {}
    for two in combinations(parts, 2):
        others = sum(part for fold, part in parts.items() if fold not in two)
        models[frozenset(two)] = [
            cca.fit(others, images.shape[1], ridge, power=_POWER) for ridge in ridges
        ]
    return models


def fold_moments(
    images: Rows,
    captions: Rows,
    image_of: Int[np.ndarray, " pairs"],
    drawn: Mapping[int, FoldPairs],
) -> dict[int, Float[np.ndarray, "d d"]]:
    """Return the second moments of the pairs of each fold (see `cca.moments`)."""
    parts = {}
    for fold, here in drawn.items():
        pairs = np.sort(here.pairs)
        weights = np.ones((1, len(pairs)), np.float32)
        parts[fold] = cca.moments(images, captions, image_of[pairs], pairs, weights)[0]
    return parts


def cca_similarity(model: Cca, images: Rows, captions: Rows) -> ProductSimilarity:
    """Return the cosines of images and captions as a function of their rows."""
    return ProductSimilarity(
        partial(encode_rows, model.encode_images, images),
        partial(encode_rows, model.encode_captions, captions),
    )


def encode_rows(
    encode: Callable, vectors: Rows, rows: Int[np.ndarray, " n"]
) -> Float32[jax.Array, "n components"]:
    """Return the codes of some rows by `Cca.encode_images` or `Cca.encode_captions`."""
    blocks = padded_blocks(rows, BLOCK)
    return jnp.concatenate([encode(vectors[block])[:count] for block, count in blocks])
