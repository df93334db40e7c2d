"""Anderson acceleration of a fixed-point iteration, one step at a time.

References:
    Anderson, Iterative procedures for nonlinear integral equations, J. ACM 1965.
    Walker, Ni, Anderson acceleration for fixed-point iterations, SIAM J. Numer. Anal. 2011.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# Number of earlier steps to remember. With five, up to 50% more iterations are needed; ten gain
# little over eight.
_MEMORY = 8
# Relative weight of the ridge term: it keeps float32's least squares from fitting rounding errors.
_REGULARISATION = 1e-7
# A residual that grows by this factor restarts the memory: earlier steps no longer inform this one.
_GROWTH = 3.0


class Memory(NamedTuple):
    """Differences between consecutive earlier steps, newest last; zero where there is none yet."""

    residuals: Float[Array, "k m"]  # changes of the weighted residual
    outputs: Float[Array, "k m"]  # changes of the map's value
    gram: Float[Array, "k k"]  # inner products of `residuals`
    residual: Float[Array, " m"]  # residual of the last step
    least: Float[Array, ""]  # smallest residual norm since the last restart


def empty_memory(residual: Float[Array, " m"]) -> Memory:
    """Memory without earlier steps, for residuals of this shape and dtype."""
    nothing = jnp.zeros((_MEMORY, *residual.shape), residual.dtype)
    gram = jnp.zeros((_MEMORY, _MEMORY), residual.dtype)
    return Memory(nothing, nothing, gram, residual, jnp.asarray(jnp.inf, residual.dtype))


def extrapolate(
    memory: Memory, residual: Float[Array, " m"], change: Float[Array, " m"], norm
) -> tuple[Memory, Float[Array, " m"]]:
    """Compute the correction to add to the map's value.

    Args:
        memory: the memory that the previous step returned.
        residual: the map's value minus its argument, weighted as the least-squares norm demands.
        change: the map's value minus its value at the previous step.
        norm: size of the residual; if it has grown threefold, the memory restarts.

    Returns:
        The updated memory and the correction.
    """
    restart = ~(norm <= _GROWTH * memory.least)
    is_first = jnp.isinf(memory.least) | restart

    def remember(rows, row):
        rows = jnp.concatenate([rows[1:], row[None]])
        return jnp.where(is_first, 0.0, rows)

    residuals = remember(memory.residuals, residual - memory.residual)
    outputs = remember(memory.outputs, change)
    least = jnp.where(restart, norm, jnp.minimum(norm, memory.least))
    newest = _product(residuals, residuals[-1])
    gram = remember(jnp.pad(memory.gram[:, 1:], ((0, 0), (0, 1))), newest).at[:, -1].set(newest)
    right_hand_side = _product(residuals, residual)
    size = jnp.maximum(jnp.trace(gram), jnp.finfo(gram.dtype).tiny)
    ridge = _REGULARISATION * jnp.eye(_MEMORY, dtype=gram.dtype)
    weights = _solve(gram / size + ridge, right_hand_side / size)
    correction = -_product(outputs.T, weights)
    return Memory(residuals, outputs, gram, residual, least), correction


def _product(matrix: Float[Array, "n m"], vector: Float[Array, " m"]) -> Float[Array, " n"]:
    return jnp.matmul(matrix, vector, precision=lax.Precision.HIGHEST)


def _solve(matrix: Float[Array, "k k"], right: Float[Array, " k"]) -> Float[Array, " k"]:
    """Solve a small positive definite system by unrolled Gauss-Jordan elimination.

    For a system this small, calling a linear algebra library costs more.
    """
    system = jnp.concatenate([matrix, right[:, None]], axis=1)
    for k in range(len(right)):
        pivot = system[k] / system[k, k]
        system = (system - jnp.outer(system[:, k], pivot)).at[k].set(pivot)
    return system[:, -1]
