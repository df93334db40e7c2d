"""Sums and products of matrices with full float32 precision.

Adding thousands of numbers one after another loses a digit or two, most of all if the numbers are
equal, because all roundings then go one way. Here rows are summed in blocks, and the sums of the
blocks are added.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_BLOCK_ROWS = 32


def split_into_blocks(matrix: Float[Array, "n m"]) -> Float[Array, "B r m"]:
    """Split a matrix into blocks of rows; rows of zeros fill the last block."""
    n, m = matrix.shape
    rows = min(n, _BLOCK_ROWS)
    return jnp.pad(matrix, ((0, -n % rows), (0, 0))).reshape(-1, rows, m)


def matrix_vector(
    blocks: Float[Array, "B r m"], v: Float[Array, " m"], n: int
) -> Float[Array, " n"]:
    """Product `matrix @ v` of a matrix of `n` rows, given in blocks.

    Within a row the hardware adds many partial sums at once, so rows need no blocks.
    """
    return jnp.einsum("brm,m->br", blocks, v, precision=lax.Precision.HIGHEST).ravel()[:n]


def vector_matrix(u: Float[Array, " n"], blocks: Float[Array, "B r m"]) -> Float[Array, " m"]:
    """Product `u @ matrix` of a matrix given in blocks."""
    count, rows, _ = blocks.shape
    u = jnp.pad(u, (0, count * rows - len(u))).reshape(count, rows)
    block_products = jnp.einsum("br,brm->bm", u, blocks, precision=lax.Precision.HIGHEST)
    return block_products.sum(0)


def matrix_total(matrix: Float[Array, "n m"]) -> Float[Array, ""]:
    """Sum of all entries, row by row; the barrier stops the compiler from fusing one long sum."""
    return lax.optimization_barrier(matrix.sum(1)).sum()


def vector_total(vector: Float[Array, " n"]) -> Float[Array, ""]:
    """Sum of a vector's entries, block by block."""
    return matrix_total(split_into_blocks(vector[:, None])[..., 0])


def exact_total(vector: Float[Array, " n"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sum of a vector's entries and the rounding error of that sum, which is to be added to it.

    Halves are added until one number is left, and the errors of all additions are kept.
    """
    error = jnp.zeros_like(vector)
    while len(vector) > 1:
        vector, error = (jnp.pad(x, (0, len(x) % 2)) for x in (vector, error))
        left, right = jnp.split(vector, 2)
        vector = left + right
        of_right = vector - left
        lost = (left - (vector - of_right)) + (right - of_right)
        error = lost + sum(jnp.split(error, 2))
    return vector[0], error[0]
