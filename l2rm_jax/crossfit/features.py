"""Vectors of the images and captions of a data set, fitted without looking at its pairs."""

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.crossfit.rows import Rows
from l2rm_jax.crossfit.set_features import set_rows
from l2rm_jax.crossfit.word_features import word_rows
from l2rm_jax.data import PairDataset, RegionFeatures


class VectorRows:
    """Features with one vector each, as they are, read from their file."""

    def __init__(self, features: RegionFeatures):
        self._features = features
        self.shape = len(features), features.shape[2]

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n dimensions"]:
        return self._features.rows(rows)[:, 0]


def image_vectors(dataset: PairDataset) -> Rows:
    """Return one vector an image: its own, or regions pooled (see `set_features`).

    Raises:
      DataError: a feature is not finite; of single vectors only when they are read.
    """
    return _vectors(dataset.images)


def caption_vectors(dataset: PairDataset) -> Rows:
    """Return one vector a caption: its own, word vectors pooled, or weighted counts of its words.

    Raises:
      DataError: as `image_vectors`.
    """
    if isinstance(dataset.tokens, RegionFeatures):
        return _vectors(dataset.tokens)
    return word_rows(dataset.tokens)


def _vectors(features: RegionFeatures) -> Rows:
    if features.shape[1] == 1:
        return VectorRows(features)
    return set_rows(lambda rows: (features.rows(rows), features.region_counts(rows)), len(features))
