"""Vectors of the images and captions of a data set, fitted without looking at its pairs."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.linear.rows import Rows
from l2rm_jax.linear.set_features import Pooling, set_rows
from l2rm_jax.linear.word_features import WordWeights, word_rows


class VectorRows:
    """Features with one vector per row, read from their file unchanged."""

    def __init__(self, features: RegionFeatures):
        self._features = features
        self.shape = len(features), features.shape[2]

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n dimensions"]:
        return self._features.rows(rows)[:, 0]


class Fitted(NamedTuple):
    """Vectors, and the fit that computed them from the features, for use on other features.

    Attributes:
      fit: the model fitted to the features; None if the features are single vectors.
      rows: the vectors.
    """

    fit: Pooling | WordWeights | None
    rows: Rows


def image_vectors(dataset: PairDataset) -> Fitted:
    """Return one vector per image: its single vector, or its pooled regions (see `set_features`).

    Raises:
      DataError: a feature is not finite; for single vectors only when they are read.
    """
    if dataset.judged_images is not None:
        return _vectors(dataset.judged_images)
    return _vectors(dataset.images)


def caption_vectors(dataset: PairDataset) -> Fitted:
    """Return one vector per caption: its single vector, pooled vectors, or weighted word counts.

    Raises:
      DataError: as `image_vectors`.
    """
    if dataset.judged_captions is not None:
        return _vectors(dataset.judged_captions)
    if isinstance(dataset.tokens, RegionFeatures):
        return _vectors(dataset.tokens)
    fit, rows = word_rows(dataset.tokens)
    return Fitted(fit, rows)


def _vectors(features: RegionFeatures) -> Fitted:
    if features.shape[1] == 1:
        return Fitted(None, VectorRows(features))
    fit, rows = set_rows(lambda k: (features.rows(k), features.region_counts(k)), len(features))
    return Fitted(fit, rows)
