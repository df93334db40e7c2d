"""Leading eigenvectors of large symmetric matrices."""

from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.sparse
from jaxtyping import Float

EXACT = 2048  # largest size of a matrix that is decomposed exactly
_OVERSAMPLING = 32
_ITERATIONS = 8
_SMALLEST = 1e-10  # eigenvalue, relative to the largest, whose vector has a direction


def principal_directions(
    rows: Float[np.ndarray, "n dimensions"] | scipy.sparse.csr_array, count: int
) -> Float[np.ndarray, "dimensions kept"]:
    """Return the leading eigenvectors of `rows.T @ rows`.

    The smaller one of this matrix and of `rows @ rows.T` is decomposed, exactly up to `EXACT`.

    Args:
      rows: the rows, dense or sparse.
      count: number of eigenvectors, at least 1; more than there are columns give one per column.

    Returns:
      [dimensions, kept] orthogonal columns, the largest eigenvalue first; zeros instead of vectors
      beyond the rank of `rows`, if there are fewer rows than columns.
    """
    n, dimensions = rows.shape
    if n >= dimensions or n > EXACT:
        if dimensions > EXACT:
            return leading_directions(lambda m: rows.T @ (rows @ m), dimensions, count)
        return symmetric_directions(_dense(rows.T @ rows), count)
    values, vectors = _leading(_dense(rows @ rows.T), min(count, n))
    is_real = values > _SMALLEST * max(values[0], np.finfo(float).tiny)
    found = np.zeros((dimensions, min(count, dimensions)))
    found[:, : is_real.sum()] = rows.T @ (vectors[:, is_real] / np.sqrt(values[is_real]))
    return found


def symmetric_directions(
    matrix: Float[np.ndarray, "dimensions dimensions"], count: int
) -> Float[np.ndarray, "dimensions kept"]:
    """Return the leading eigenvectors of a symmetric positive semi-definite matrix."""
    if len(matrix) > EXACT:
        return leading_directions(lambda m: matrix @ m, len(matrix), count)
    return _leading(matrix, min(count, len(matrix)))[1]


def _leading(matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest eigenvalues, in descending order, with their eigenvectors."""
    size = len(matrix)
    values, vectors = scipy.linalg.eigh(
        matrix.astype(np.float64), subset_by_index=[size - count, size - 1]
    )
    return values[::-1], vectors[:, ::-1]


def _dense(matrix: np.ndarray | scipy.sparse.csr_array) -> np.ndarray:
    return matrix.toarray() if scipy.sparse.issparse(matrix) else matrix


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
