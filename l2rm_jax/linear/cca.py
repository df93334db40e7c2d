"""Canonical correlation analysis (CCA): a linear model of matched pairs, in closed form.

It finds the directions in which the images' vectors and the captions' vectors correlate most. It
needs only the second moments of the data. These are sums over pairs, so one pass over the
data gives the moments of every fold, and the moments without some folds are the sum of the others.

References:
    Hotelling, Relations Between Two Sets of Variates, Biometrika 1936.
    Hardoon, Szedmak and Shawe-Taylor, Canonical Correlation Analysis: An Overview with Application
    to Learning Methods, Neural Computation 2004: the regularised form, and retrieval with it.
    Gong et al., A Multi-View Embedding Space for Modeling Internet Images, Tags, and Their
    Semantics, IJCV 2014: coordinates weighted by a power of their correlation, compared by cosine.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Float64, Int

from l2rm_jax.linear.rows import BLOCK, Rows
from l2rm_jax.linear.threads import limit_threads

COMPONENTS = 128
POWER = 1.5  # of the correlation that weights a coordinate
_ONE_THREAD = 2048  # up to this number of dimensions, one thread is fastest
_SMALLEST = 4e-6  # more than the rounding error of a sum of squares in float32, relative to it


class Ridge(NamedTuple):
    """Constants added to the variances, as multiples of the mean variance of each side."""

    images: float
    captions: float


class Cca(NamedTuple):
    """A fitted model: maps of both sides into one space, in which cosines compare them."""

    image_mean: Float32[np.ndarray, " di"]
    image_map: Float32[np.ndarray, "di components"]
    caption_mean: Float32[np.ndarray, " dc"]
    caption_map: Float32[np.ndarray, "dc components"]
    correlations: Float32[np.ndarray, " components"]  # descending, in [0, 1]

    def encode_images(self, rows: Float[np.ndarray, "n di"]) -> Float32[jax.Array, "n components"]:
        """Return unit vectors; inner products with caption vectors are the similarities."""
        return _encode(rows, self.image_mean, self.image_map)

    def encode_captions(
        self, rows: Float[np.ndarray, "n dc"]
    ) -> Float32[jax.Array, "n components"]:
        """Return unit vectors, as `encode_images`."""
        return _encode(rows, self.caption_mean, self.caption_map)


def moments(
    images: Rows,
    captions: Rows,
    image_rows: Int[np.ndarray, " n"],
    caption_rows: Int[np.ndarray, " n"],
    weights: Float[np.ndarray, "models n"],
) -> Float64[np.ndarray, "models d d"]:
    """Return the weighted second moments of some pairs, d = 1 + di + dc, in one pass.

    With z = [1, image, caption] of a pair, the moments are the sum of weight * z zᵀ: its corner is
    the sum of the weights, its first row the sums of the vectors. Each block's product is in
    float32, of a matrix with itself, which halves the operations; the sum over blocks is in
    float64.

    Args:
      images: [images, di] vectors of the images.
      captions: [captions, dc] vectors of the captions.
      image_rows: the image of each pair, as a row of `images`.
      caption_rows: its caption, as a row of `captions`.
      weights: weights of these pairs, 0 or more; one row per model.
    """
    size = 1 + images.shape[1] + captions.shape[1]
    total = np.zeros((len(weights), size, size))
    for start in range(0, len(image_rows), BLOCK):
        at = slice(start, start + BLOCK)
        vectors = images[image_rows[at]], captions[caption_rows[at]]
        z = np.concatenate([np.ones((len(vectors[0]), 1)), *vectors], axis=1, dtype=np.float32)
        for model, weight in enumerate(weights[:, at]):
            scaled = z * np.sqrt(weight, dtype=np.float32)[:, None]
            total[model] += scaled.T @ scaled
    return total


def fit(
    moments: Float64[np.ndarray, "d d"],
    image_dimensions: int,
    ridge: Ridge,
    components: int = COMPONENTS,
    power: float = POWER,
) -> Cca:
    """Fit the model to second moments.

    Args:
      moments: [1 + di + dc, 1 + di + dc] as `moments` gives them, with a positive sum of weights.
      image_dimensions: di.
      ridge: regularisation of either side.
      components: number of coordinates; limited to min(di, dc).
      power: exponent of the correlation that each coordinate is multiplied by.
    """
    threads = 1 if len(moments) <= _ONE_THREAD else None
    with limit_threads(threads):
        return _fit(moments, image_dimensions, ridge, components, power)


def _fit(
    moments: np.ndarray, image_dimensions: int, ridge: Ridge, components: int, power: float
) -> Cca:
    mean = moments[0, 1:] / moments[0, 0]
    covariance = moments[1:, 1:] / moments[0, 0] - np.outer(mean, mean)
    di, dc = image_dimensions, len(mean) - image_dimensions
    squares = np.diag(moments)[1:] / moments[0, 0]
    white_images = _whitening(covariance[:di, :di], ridge.images, squares[:di])
    white_captions = _whitening(covariance[di:, di:], ridge.captions, squares[di:])
    cross = white_images @ covariance[:di, di:] @ white_captions.T
    # Singular vectors: for the smaller side from its Gram matrix, for the other side from these.
    flip = di > dc
    cross = cross.T if flip else cross
    values, left = np.linalg.eigh(cross @ cross.T)
    kept = slice(None, -1 - min(components, di, dc), -1)
    left = left[:, kept]
    correlations = np.sqrt(values[kept].clip(1e-12, 1))
    right = cross.T @ left / correlations
    left, right = (right, left) if flip else (left, right)
    scale = correlations**power
    arrays = mean[:di], white_images.T @ left * scale, mean[di:], white_captions.T @ right * scale
    return Cca(*(array.astype(np.float32) for array in (*arrays, correlations)))


def _whitening(covariance: np.ndarray, ridge: float, squares: np.ndarray) -> np.ndarray:
    """Inverse Cholesky factor W of a covariance with its ridge: W (C + ridge) Wᵀ is the identity.

    The ridge is relative to the mean variance, and at least the rounding error of the squares, all
    of which may lie along one direction; so the factor also exists for vectors far from 0.
    """
    added = max(ridge * np.trace(covariance) / len(covariance), _SMALLEST * squares.sum()) or 1.0
    return np.linalg.inv(np.linalg.cholesky(covariance + added * np.eye(len(covariance))))


@jax.jit
def _encode(rows: jax.Array, mean: jax.Array, matrix: jax.Array) -> jax.Array:
    codes = jnp.matmul(rows.astype(jnp.float32) - mean[None], matrix, precision="highest")
    return codes / jnp.maximum(jnp.linalg.norm(codes, axis=1, keepdims=True), 1e-12)
