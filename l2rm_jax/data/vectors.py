"""Vectors of the images and captions of a data set, fitted without looking at its pairs."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.data.contents import rows_of_texts
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.pixels import Pixels
from l2rm_jax.errors import DataError
from l2rm_jax.linear.rows import Rows
from l2rm_jax.linear.set_features import Pooling, set_rows
from l2rm_jax.linear.word_features import WordRows, WordWeights, word_rows

_COMPUTED = list, WordRows, Pixels, type(None)  # word indices, word counts, pictures, only texts


class VectorRows:
    """First vector of each row of features, read from their file unchanged."""

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


class Poolings(NamedTuple):
    """How the sets of vectors of each side become single vectors; None for a side without sets."""

    images: Pooling | None = None
    captions: Pooling | None = None


def image_vectors(pairs: Pairs) -> Fitted:
    """Return one vector per image: its single vector, or its pooled regions (see `set_features`).

    Raises:
      DataError: a feature is not finite, for single vectors only when they are read; or the images
        are pictures.
    """
    return _vectors(pairs.images)


def caption_vectors(pairs: Pairs) -> Fitted:
    """Return one vector per caption: its single vector, pooled vectors, or weighted word counts.

    Raises:
      DataError: as `image_vectors`.
    """
    if pairs.captions is None:
        return Fitted(None, rows_of_texts(pairs.texts))
    if isinstance(pairs.captions, list):
        return Fitted(*word_rows(pairs.captions))
    return _vectors(pairs.captions)


def are_sets(features: RegionFeatures | Pixels | Rows | None) -> bool:
    """Return whether each row has several vectors."""
    return isinstance(features, RegionFeatures) and features.shape[1] > 1


def have_vectors(pairs: Pairs) -> bool:
    """Return whether both sides are vectors or sets of vectors, not texts, words or pictures."""
    return not any(isinstance(side, _COMPUTED) for side in (pairs.images, pairs.captions))


def pooled(pairs: Pairs, poolings: Poolings | None = None) -> tuple[Pairs, Poolings]:
    """Return the pairs with one vector for each set of vectors, and how they were pooled.

    Captions that are texts or words stay as they are.

    Args:
      pairs: the pairs.
      poolings: fitted to other pairs; None fits them to these.

    Raises:
      DataError: as `image_vectors`.
    """
    known = poolings or Poolings()
    images, captions = _vectors(pairs.images, known.images), Fitted(None, pairs.captions)
    if isinstance(pairs.captions, RegionFeatures):
        captions = _vectors(pairs.captions, known.captions)
    pairs = replace(pairs, images=images.rows, captions=captions.rows)
    return pairs, Poolings(images.fit, captions.fit)


def as_rows(pairs: Pairs) -> Pairs:
    """Return the pairs with one vector per image and per caption, as judging takes them.

    Captions that are vectors and have texts get the vectors of their words as a second embedding.

    Raises:
      DataError: as `image_vectors`.
    """
    pairs, _ = pooled(pairs)
    are_words = pairs.captions is None or isinstance(pairs.captions, list)
    words = pairs.words
    if words is None and not are_words and pairs.texts is not None:
        words = rows_of_texts(pairs.texts)
    return replace(pairs, captions=caption_vectors(pairs).rows, words=words)


def _vectors(features: RegionFeatures | Pixels | Rows, pooling: Pooling | None = None) -> Fitted:
    if isinstance(features, Pixels):
        raise DataError(f"{features.name}: found pictures, expected vectors or features")
    if not isinstance(features, RegionFeatures):
        return Fitted(None, features)
    if not are_sets(features):
        return Fitted(None, VectorRows(features))

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return features.rows(rows), features.region_counts(rows)

    return Fitted(*set_rows(read, len(features), pooling))
