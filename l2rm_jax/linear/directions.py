"""Leading directions of a large symmetric matrix, of which only products with it are needed."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

_OVERSAMPLING = 32
_ITERATIONS = 8


def leading_directions(
    multiply: Callable[[np.ndarray], np.ndarray], dimensions: int, count: int
) -> Float[np.ndarray, "dimensions kept"]:
    """Return an orthonormal basis of the leading eigenvectors, by orthogonal iteration.

    What follows does not depend on the basis, only on the space that it spans, so the last
    directions need not have converged.

    Args:
      multiply: multiplies the positive semi-definite matrix [dimensions, dimensions] with a matrix
        of some columns.
      dimensions: size of the matrix.
      count: number of directions; at most `dimensions` are there.

    References:
        Halko, Martinsson and Tropp, Finding Structure with Randomness, SIAM Review 2011,
        algorithm 4.4.
    """
    width = min(dimensions, count + _OVERSAMPLING)
    basis = np.random.default_rng(0).standard_normal((dimensions, width))
    for _ in range(_ITERATIONS):
        basis = np.linalg.qr(multiply(np.linalg.qr(basis)[0]))[0]
    values, vectors = np.linalg.eigh(basis.T @ multiply(basis))
    order = np.argsort(-values, kind="stable")[: min(count, dimensions)]
    return basis @ vectors[:, order]
