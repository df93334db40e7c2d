"""Folds, keys and fold pairs of arrays, for tests of single parts."""

import numpy as np

from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging.content_keys import Keys, content_keys
from l2rm_jax.judging.folds import FoldPairs, Folds, assign_folds, fold_pairs
from l2rm_jax.linear import cca


def divided(
    images, captions, stored, folds: int = 5, group=None, seed: int = 0
) -> tuple[Folds, Keys, dict[int, FoldPairs]]:
    """Return folds by row, the hashes of all contents, and the samples of each fold."""
    numbers = assign_folds(np.arange(len(images)), folds, 0)
    of = Folds(stored, numbers, np.arange(len(images)) if group is None else group)
    keys = content_keys(Pairs(images, captions, stored))
    return of, keys, fold_pairs(of, keys, seed)


def fit_weighted(images, captions, image_of, weights, ridge):
    """Fit one CCA to all pairs."""
    [moments] = cca.moments(images, captions, image_of, np.arange(len(image_of)), weights[None])
    return cca.fit(moments, images.shape[1], ridge)
