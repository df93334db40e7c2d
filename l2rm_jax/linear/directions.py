"""Leading eigenvectors of a large symmetric matrix that is given only by its products."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

_OVERSAMPLING = 32
_ITERATIONS = 8


def leading_directions(
    multiply: Callable[[np.ndarray], np.ndarray], dimensions: int, count: int
) -> Float[np.ndarray, "dimensions kept"]:
    """Approximate the eigenvectors of the largest eigenvalues, by orthogonal iteration.

    The number of iterations is fixed, so eigenvectors whose eigenvalues are nearly equal may still
    be mixed with each other. Callers only project to the space that they span, for which the
    mixture makes no difference.

    Args:
      multiply: `[dimensions, k] -> [dimensions, k]`, the product of the matrix, which must be
        symmetric and positive semi-definite, with k columns.
      dimensions: number of rows of the matrix.
      count: number of eigenvectors, at least 1; more than `dimensions` give `dimensions`.

    Returns:
      [dimensions, kept] orthonormal columns, the largest eigenvalue first. The random start is
      fixed, so the same matrix gives the same columns.

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
