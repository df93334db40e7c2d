"""Vectors of captions from weighted word counts, in a few hundred dimensions.

A caption's vector has one entry per word, the square root of its count times the word's inverse
document frequency, and unit length. The leading singular directions of all captions reduce it
(latent semantic analysis). It does not depend on the images.

References:
    Deerwester et al., Indexing by Latent Semantic Analysis, JASIS 1990.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
from jaxtyping import Float32, Int

from l2rm_jax.linear.directions import principal_directions

DIMENSIONS = 400
MIN_CAPTIONS = 4  # a word in fewer captions is left out
_FIT_CAPTIONS = 100_000  # maximum number of sampled captions for the directions


class WordWeights(NamedTuple):
    """Weights that turn the words of a caption into a vector; row w belongs to word number w."""

    rarity: Float32[np.ndarray, " words"]  # log of captions per caption with the word; 0: left out
    directions: Float32[np.ndarray, "words dimensions"]


class WordRows:
    """Captions' vectors [captions, dimensions], computed when they are read.

    Args:
      arrays: weights of the words of each caption, as data, indices and starts of a sparse matrix
        [captions, words] in rows, and the directions [words, dimensions].
    """

    def __init__(self, *arrays: np.ndarray):
        *sparse, self._directions = self.arrays = arrays
        shape = len(arrays[2]) - 1, len(self._directions)
        self._weights = scipy.sparse.csr_array(tuple(sparse), shape=shape)
        self.shape = shape[0], self._directions.shape[1]

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n dimensions"]:
        return self._weights[rows] @ self._directions


def word_rows(tokens: Sequence[Int[np.ndarray, " words"]], fitted: WordWeights) -> WordRows:
    """Return the vectors of captions by fitted weights.

    Args:
      tokens: the words of each caption as numbers, less than the number of fitted words.
      fitted: the weights.
    """
    counts = word_counts(tokens)
    counts.resize(len(tokens), len(fitted.rarity))
    weights = weighted_counts(counts, fitted.rarity)
    return WordRows(weights.data, weights.indices, weights.indptr, fitted.directions)


def fit_words(tokens: Sequence[Int[np.ndarray, " words"]]) -> WordWeights:
    """Fit the weights of words to all captions.

    Args:
      tokens: the words of each caption as numbers, 0 or more. Markers that occur in every caption
        have no weight, as their document frequency is 1.

    Returns:
      The weights. If no word is in at least `MIN_CAPTIONS` captions, the vectors are a single
      column of zeros.
    """
    counts = word_counts(tokens)
    captions_with = np.bincount(counts.indices, minlength=counts.shape[1])
    kept = np.flatnonzero(captions_with >= MIN_CAPTIONS)
    rarity = np.zeros(counts.shape[1], np.float32)
    rarity[kept] = np.log(len(tokens) / captions_with[kept])
    weights = weighted_counts(counts, rarity)
    kept = kept if len(kept) else np.zeros(1, int)
    sample = weights[:, kept]
    if sample.shape[0] > _FIT_CAPTIONS:
        rng = np.random.default_rng(0)
        sample = sample[np.sort(rng.choice(sample.shape[0], _FIT_CAPTIONS, replace=False))]
    found = principal_directions(sample, DIMENSIONS)
    directions = np.zeros((len(rarity), found.shape[1]), np.float32)
    directions[kept] = found
    return WordWeights(rarity, directions)


def word_counts(tokens: Sequence[Int[np.ndarray, " words"]]) -> scipy.sparse.csr_array:
    """Return [captions, words] counts, up to the highest word number."""
    lengths = np.array([len(caption) for caption in tokens])
    words = np.concatenate([*tokens, np.zeros(0, np.int32)]).astype(np.int64)
    starts = np.append(0, np.cumsum(lengths))
    ones = np.ones(len(words), np.float32)
    counts = scipy.sparse.csr_array(
        (ones, words, starts), shape=(len(tokens), int(words.max(initial=0)) + 1)
    )
    counts.sum_duplicates()
    return counts


def weighted_counts(
    counts: scipy.sparse.csr_array, rarity: Float32[np.ndarray, " words"]
) -> scipy.sparse.csr_array:
    """Return [captions, words] weighted counts; rows have unit length, or 0 without a known word.

    Args:
      counts: [captions, words] number of occurrences of each word in each caption.
      rarity: the inverse document frequency of each word, or 0.
    """
    weights = counts.copy()
    weights.data = np.sqrt(weights.data) * rarity[weights.indices]
    norms = np.sqrt(weights.multiply(weights).sum(axis=1)).clip(1e-12).astype(np.float32)
    weights.data /= np.repeat(norms, np.diff(weights.indptr))
    return weights
