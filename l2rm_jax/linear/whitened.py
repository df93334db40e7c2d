"""Whitened principal components: coordinates in which second moments are easy to invert."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.linear.directions import symmetric_directions
from l2rm_jax.linear.rows import BLOCK, Rows

_SMALLEST = 1e-6  # variance of a component, relative to the largest, below which it is 0


class Whitened(NamedTuple):
    """Coordinates of some vectors, and the map that gives them.

    Attributes:
      rows: [n, k] coordinates, uncorrelated, with variances below 1; 0 beyond the rank.
      mean: [d] mean of the vectors.
      matrix: [d, k] maps vectors minus their mean to coordinates.
    """

    rows: Float32[np.ndarray, "n k"]
    mean: Float32[np.ndarray, " d"]
    matrix: Float32[np.ndarray, "d k"]


def whitened(vectors: Rows, rows: Int[np.ndarray, " n"], count: int, ridge: float) -> Whitened:
    """Return the leading principal components of some vectors, divided by their deviations.

    Args:
      vectors: [all, d].
      rows: the vectors to use; they are read twice, block by block.
      count: most components, 1 or more.
      ridge: constant added to the variances, as a multiple of their mean over the components.
    """
    blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
    size = vectors.shape[1]
    total, squares = np.zeros(size), np.zeros((size, size))
    for block in blocks:
        values = np.asarray(vectors[block], np.float32)
        total += values.sum(axis=0, dtype=np.float64)
        squares += values.T @ values
    mean = total / len(rows)
    covariance = squares / len(rows) - np.outer(mean, mean)
    directions = symmetric_directions(covariance, count)
    variance = np.einsum("dk,dk->k", directions, covariance @ directions)
    is_kept = variance > _SMALLEST * max(variance[0], np.finfo(np.float32).tiny)
    average = variance[is_kept].mean() if is_kept.any() else 1.0
    scale = np.where(is_kept, 1 / np.sqrt(np.maximum(variance, 0) + ridge * average), 0)
    matrix, mean = (directions * scale).astype(np.float32), mean.astype(np.float32)
    parts = [(np.asarray(vectors[block], np.float32) - mean) @ matrix for block in blocks]
    return Whitened(np.concatenate(parts), mean, matrix)
