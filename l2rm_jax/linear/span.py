"""Coordinates of few high-dimensional vectors in the space that they span.

A linear model fitted to them lies in that space, so nothing is lost, and the size of its matrices
is the number of vectors.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from l2rm_jax.linear.cca import Cca, Ridge
from l2rm_jax.linear.rows import Rows
from l2rm_jax.linear.threads import limit_threads


class Span(NamedTuple):
    """Coordinates of vectors, and the basis that they refer to.

    Attributes:
      rows: [n, r] coordinates of n vectors.
      basis: [d, r] orthonormal columns; None if the vectors are their own coordinates.
    """

    rows: Rows
    basis: Float32[np.ndarray, "d r"] | None

    @property
    def share(self) -> float:
        """Dimensions of the span, as a share of all dimensions."""
        return 1.0 if self.basis is None else self.basis.shape[1] / len(self.basis)


def span(vectors: Rows) -> Span:
    """Return coordinates of vectors: the vectors themselves, unless dimensions exceed rows.

    Args:
      vectors: [n, d].
    """
    count, dimensions = vectors.shape
    if count >= dimensions:
        return Span(vectors, None)
    with limit_threads():  # more threads would mostly wait for each other
        basis, coordinates = np.linalg.qr(np.asarray(vectors[np.arange(count)], np.float64).T)
    return Span(coordinates.T.astype(np.float32), basis.astype(np.float32))


def ridge_in(ridge: Ridge, images: Span, captions: Span) -> Ridge:
    """Convert a ridge for whole vectors to an equivalent ridge for their coordinates.

    A ridge is a multiple of the mean variance per dimension. The coordinates have the variance of
    the vectors in fewer dimensions, so their mean variance is larger, by one over `Span.share`.

    Args:
      ridge: for the vectors.
      images: coordinates of the image vectors.
      captions: coordinates of the caption vectors.
    """
    return Ridge(ridge.images * images.share, ridge.captions * captions.share)


def whole(model: Cca, images: Span, captions: Span) -> Cca:
    """Convert a model of coordinates to a model of the vectors themselves."""
    (image_mean, image_map), (caption_mean, caption_map) = (
        (mean, matrix) if side.basis is None else (side.basis @ mean, side.basis @ matrix)
        for mean, matrix, side in (
            (model.image_mean, model.image_map, images),
            (model.caption_mean, model.caption_map, captions),
        )
    )
    return Cca(image_mean, image_map, caption_mean, caption_map, model.correlations)
