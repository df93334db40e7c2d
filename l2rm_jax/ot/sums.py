"""Products and sums of matrices that keep float32's digits.

Thousands of numbers added one after another lose a digit or two, most where they are equal and all
roundings go one way. Here rows are added by blocks, whose sums are then added.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

_ROWS = 32  # of a block


def in_blocks(matrix: Float[Array, "n m"]) -> Float[Array, "B r m"]:
    """Blocks of rows; rows of zeros fill the last one."""
    n, m = matrix.shape
    rows = min(n, _ROWS)
    return jnp.pad(matrix, ((0, -n % rows), (0, 0))).reshape(-1, rows, m)


def row_sums(blocks: Float[Array, "B r m"], v: Float[Array, " m"], n: int) -> Float[Array, " n"]:
    """`matrix @ v`: within a row, the hardware adds many parts at once."""
    return jnp.einsum("brm,m->br", blocks, v, precision=lax.Precision.HIGHEST).ravel()[:n]


def column_sums(u: Float[Array, " n"], blocks: Float[Array, "B r m"]) -> Float[Array, " m"]:
    """`u @ matrix`."""
    count, rows, _ = blocks.shape
    u = jnp.pad(u, (0, count * rows - len(u))).reshape(count, rows)
    of_blocks = jnp.einsum("br,brm->bm", u, blocks, precision=lax.Precision.HIGHEST)
    return of_blocks.sum(0)


def total(matrix: Float[Array, "n m"]) -> Float[Array, ""]:
    """The sum of all entries, row by row: the compiler would make one long sum of them."""
    return lax.optimization_barrier(matrix.sum(1)).sum()


def sum_of(vector: Float[Array, " n"]) -> Float[Array, ""]:
    """The sum of a vector's entries, likewise."""
    return total(in_blocks(vector[:, None])[..., 0])
