"""What is left of a partial transport problem once everything trivial has been taken out of it."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

# The least mass, as a share of the larger total weight, that plans are computed for; a smaller
# one is the same plan, scaled: items do not feel each other at either.
_SMALLEST_MASS = 1e-6
# Stands for a total of zero where its logarithm is needed; far below any rounding.
_NOTHING = 1e-20


class Side(NamedTuple):
    """The rows, or the columns, that can move at all."""

    weights: Float[Array, " n"]  # 0 for an item that cannot move
    left: Float[Array, ""]  # what remains of them, > 0


class Problem(NamedTuple):
    """Masked partial transport in units of epsilon, with weights of about one in total."""

    cost: Float[Array, "n m"]  # cost / epsilon, from 0 up; infinite where nothing may move
    rows: Side
    columns: Side
    mass: Float[Array, ""]  # > 0 unless nothing can move


class Scales(NamedTuple):
    """From the units of a `Problem` back to the caller's."""

    weight: Float[Array, ""]  # the larger of |a| and |b|
    cost: Float[Array, ""]  # what was taken from all costs
    mass: Float[Array, ""]  # to move, in the units of a `Problem`; may be less than its mass
    possible: Bool[Array, ""]  # the mass asked for is in range and rows and columns have so much


def reduce(
    cost: Float[Array, "n m"],
    mass: Float[Array, ""],
    epsilon: Float[Array, ""],
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    mask: Bool[Array, "n m"],
) -> tuple[Problem, Scales]:
    """Takes out items without weight or without partner, and scales and shifts the numbers.

    Items that cannot move do not touch the others: their weight stays. The least cost is taken from
    all: of costs that hardly differ, float32 would keep few digits after the division.
    """
    scale = lax.stop_gradient(jnp.maximum(jnp.maximum(a.sum(), b.sum()), jnp.finfo(a.dtype).tiny))
    a, b, asked = a / scale, b / scale, mass / scale
    mask = mask & (a > 0)[:, None] & (b > 0)[None, :]
    allowed = lax.stop_gradient(jnp.where(mask, cost, jnp.inf))
    lowest = allowed.min(1)
    a = jnp.where(lowest < jnp.inf, a, 0.0)
    b = jnp.where(allowed.min(0) < jnp.inf, b, 0.0)

    limit = jnp.minimum(a.sum(), b.sum())
    # A sum of weights is rounded: asking for all of it must not count as asking for more.
    possible = (asked >= 0.0) & (asked <= limit * (1.0 + 1e-5))
    moved = jnp.clip(asked, 0.0, limit)
    mass = jnp.maximum(moved, jnp.minimum(_SMALLEST_MASS, limit))

    shift = jnp.where(lowest.min() < jnp.inf, lowest.min(), 0.0)
    shifted = jnp.where(mask, cost - shift, 0.0) / epsilon
    problem = Problem(jnp.where(mask, shifted, jnp.inf), _side(a, mass), _side(b, mass), mass)
    return problem, Scales(scale, shift, moved, possible)


def _side(weights, mass) -> Side:
    return Side(weights, jnp.maximum(weights.sum() - mass, _NOTHING))
