"""Anderson acceleration of a fixed-point iteration, one step at a time.

References:
    Anderson, Iterative procedures for nonlinear integral equations, J. ACM 1965.
    Walker, Ni, Anderson acceleration for fixed-point iterations, SIAM J. Numer. Anal. 2011.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# Earlier steps remembered. Five need up to half as many iterations again; ten gain little more.
_MEMORY = 8
# Relative weight of the zero solution: keeps float32's least squares from fitting rounding.
_REGULARISATION = 1e-7
# A residual that grows by this factor means that the steps before say nothing about this place.
_GROWTH = 3.0


class Memory(NamedTuple):
    """What the steps before have shown; newest last, zero where there is none yet."""

    residuals: Float[Array, "k m"]  # changes of the residual, weighted
    outputs: Float[Array, "k m"]  # changes of the map's value
    gram: Float[Array, "k k"]  # products of the changes of the residual
    residual: Float[Array, " m"]  # the last one
    least: Float[Array, ""]  # smallest residual norm since the last restart


def forget(residual: Float[Array, " m"]) -> Memory:
    nothing = jnp.zeros((_MEMORY, *residual.shape), residual.dtype)
    gram = jnp.zeros((_MEMORY, _MEMORY), residual.dtype)
    return Memory(nothing, nothing, gram, residual, jnp.asarray(jnp.inf, residual.dtype))


def extrapolate(
    memory: Memory, residual: Float[Array, " m"], change: Float[Array, " m"], norm
) -> tuple[Memory, Float[Array, " m"]]:
    """What to add to the map's value, from the residuals of this and the steps before.

    Args:
        memory: of the steps before.
        residual: the map's value less its argument, in a norm's coordinates.
        change: the map's value less its value a step before.
        norm: size of the residual, which decides on a restart.
    """
    restart = ~(norm <= _GROWTH * memory.least)
    first = jnp.isinf(memory.least) | restart

    def remember(rows, row):
        rows = jnp.concatenate([rows[1:], row[None]])
        return jnp.where(first, 0.0, rows)

    residuals = remember(memory.residuals, residual - memory.residual)
    outputs = remember(memory.outputs, change)
    least = jnp.where(restart, norm, jnp.minimum(norm, memory.least))
    newest = _product(residuals, residuals[-1])
    gram = remember(jnp.pad(memory.gram[:, 1:], ((0, 0), (0, 1))), newest).at[:, -1].set(newest)
    right = _product(residuals, residual)
    size = jnp.maximum(jnp.trace(gram), jnp.finfo(gram.dtype).tiny)
    ridge = _REGULARISATION * jnp.eye(_MEMORY, dtype=gram.dtype)
    weights = _solve(gram / size + ridge, right / size)
    step = -_product(outputs.T, weights)
    return Memory(residuals, outputs, gram, residual, least), step


def _product(matrix: Float[Array, "n m"], vector: Float[Array, " m"]) -> Float[Array, " n"]:
    return jnp.matmul(matrix, vector, precision=lax.Precision.HIGHEST)


def _solve(matrix: Float[Array, "k k"], right: Float[Array, " k"]) -> Float[Array, " k"]:
    """Gauss-Jordan, unrolled: calling a library costs more than so small a definite system."""
    system = jnp.concatenate([matrix, right[:, None]], axis=1)
    for k in range(len(right)):
        pivot = system[k] / system[k, k]
        system = (system - jnp.outer(system[:, k], pivot)).at[k].set(pivot)
    return system[:, -1]
