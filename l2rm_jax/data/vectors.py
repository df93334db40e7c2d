"""Vectors of the images and captions of a data set, fitted without looking at its pairs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.data.contents import count_words, rows_of_texts
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import DataError
from l2rm_jax.jobs import LOCAL, Executor
from l2rm_jax.linear.rows import Rows
from l2rm_jax.linear.set_features import Pooling, ReadSets, fit_pooling, set_rows
from l2rm_jax.linear.word_features import WordRows, WordWeights, fit_words, word_rows


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


class CountedWords(NamedTuple):
    """Maps texts to vectors: the number of each word, and weights by these numbers."""

    vocabulary: Vocabulary
    weights: WordWeights

    def rows(self, texts: Sequence[str]) -> WordRows:
        """Return the vectors of texts."""
        return word_rows([self.vocabulary.encode(text) for text in texts], self.weights)


class Fits(NamedTuple):
    """Maps features of each side to vectors; None for a side of single vectors."""

    images: Pooling | None = None
    captions: Pooling | CountedWords | None = None


class PairRows(NamedTuple):
    """Pairs with one vector per image and per caption.

    Attributes:
      pairs: the pairs.
      fits: make such vectors of other pairs (`rows_by`); None if that is not possible: images are
        texts, or captions are numbers of words without a vocabulary.
    """

    pairs: Pairs
    fits: Fits | None

    def of_images(self, image_of: Int[np.ndarray, " pairs"]) -> "PairRows":
        """Return the same images and captions in other pairs."""
        return self._replace(pairs=replace(self.pairs, image_of=image_of, digest=""))


def image_vectors(pairs: Pairs, executor: Executor = LOCAL) -> Fitted:
    """Return one vector per image: its single vector, or its pooled regions (see `set_features`).

    Raises:
      DataError: a feature is not finite, for single vectors only when they are read; or the images
        are pictures.
    """
    return _fit(pairs.images, executor)


def caption_vectors(pairs: Pairs, executor: Executor = LOCAL) -> Fitted:
    """Return one vector per caption: its single vector, pooled vectors, or weighted word counts.

    Errors as `image_vectors`.
    """
    tokens = pairs.captions
    if tokens is None:
        return Fitted(None, rows_of_texts(pairs.texts, executor))
    if isinstance(tokens, list):
        weights = executor.once(lambda: fit_words(tokens), like=WordWeights(0, 0))
        return Fitted(weights, word_rows(tokens, weights))
    return _fit(tokens, executor)


def are_sets(features: RegionFeatures | Pixels | Rows | None) -> bool:
    """Return whether each row has several vectors."""
    return isinstance(features, RegionFeatures) and features.shape[1] > 1


def as_rows(pairs: Pairs) -> Pairs:
    """Return the pairs with one vector per image and per caption, as judging takes them.

    Raises:
      DataError: as `image_vectors`.
    """
    return fit_rows(pairs).pairs


def fit_rows(pairs: Pairs, executor: Executor = LOCAL) -> PairRows:
    """Pool regions, and count words; vectors stay as they are.

    Captions that are vectors and have texts get the vectors of their words as a second embedding.

    Raises:
      DataError: as `image_vectors`; or the pairs have no vectors.
    """
    pairs.check_vectors()
    if pairs.captions is None:
        vocabulary, tokens = count_words(pairs.texts)
        pairs = replace(pairs, captions=tokens, vocabulary=vocabulary)
    images, captions = image_vectors(pairs, executor), caption_vectors(pairs, executor)
    words, fit = pairs.words, None
    are_words = isinstance(pairs.captions, list)
    if not are_words:
        fit = captions.fit
        if words is None and pairs.texts is not None:
            words = rows_of_texts(pairs.texts, executor)
    elif pairs.vocabulary is not None:
        fit = CountedWords(pairs.vocabulary, captions.fit)
    is_known = not isinstance(pairs.images, WordRows) and not (are_words and fit is None)
    rows = replace(pairs, images=images.rows, captions=captions.rows, words=words)
    return PairRows(rows, Fits(images.fit, fit) if is_known else None)


def rows_by(pairs: Pairs, fits: Fits) -> Pairs:
    """Return pairs with one vector per image and per caption, by fits to other pairs.

    Args:
      pairs: pairs with the same kinds of features; words need `texts`.
      fits: from `fit_rows`.

    Raises:
      DataError: as `image_vectors`.
    """
    images = _vectors(pairs.images, fits.images)
    if isinstance(fits.captions, CountedWords):
        captions = fits.captions.rows(pairs.texts)
    else:
        captions = _vectors(pairs.captions, fits.captions)
    return replace(pairs, images=images, captions=captions)


def _fit(features: RegionFeatures | Pixels | Rows, executor: Executor) -> Fitted:
    pooling = None
    if are_sets(features):
        fit = partial(fit_pooling, _reader(features), len(features))
        pooling = executor.once(fit, like=Pooling(0, 0, 0, 0))
    return Fitted(pooling, _vectors(features, pooling))


def _vectors(features: RegionFeatures | Pixels | Rows, pooling: Pooling | None) -> Rows:
    if isinstance(features, Pixels):
        raise DataError(f"{features.name}: found pictures, expected vectors or features")
    if not isinstance(features, RegionFeatures):
        return features
    if not are_sets(features):
        return VectorRows(features)
    return set_rows(_reader(features), len(features), pooling)


def _reader(features: RegionFeatures) -> ReadSets:
    return lambda rows: (features.rows(rows), features.region_counts(rows))
