"""What is left of a partial transport problem once everything trivial has been taken out of it."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from l2rm_jax.ot.sums import sum_of

# The least mass, as a share of what could move, that plans are computed for; a smaller one is the
# same plan, scaled: items do not feel each other at either.
_SMALLEST_MASS = 1e-12


class Side(NamedTuple):
    """The rows, or the columns, that can move at all."""

    weights: Float[Array, " n"]  # 0 for an item that cannot move
    left: Float[Array, ""]  # what remains of them, > 0


class Problem(NamedTuple):
    """Masked partial transport in units of epsilon and of the mass."""

    cost: Float[Array, "n m"]  # cost / epsilon, from 0 up; infinite where nothing may move
    least: Float[Array, " n"]  # of the costs of each row; 0 where it cannot move
    rows: Side
    columns: Side
    mass: Float[Array, ""]  # 1, or 0 where nothing can move


class Scales(NamedTuple):
    """From the units of a `Problem` back to the caller's."""

    weight: Float[Array, ""]  # the unit of mass
    cost: Float[Array, ""]  # what was taken from all costs
    mass: Float[Array, ""]  # to move, in units of a `Problem`; less than 1 where hardly any is


class Request(NamedTuple):
    """What may move, of what was asked."""

    cost: Float[Array, "n m"]  # infinite but for allowed pairs of items with weight
    least: Float[Array, " n"]  # of these costs, in each row
    a: Float[Array, " n"]  # weights of the items that have such a pair; 0 for others
    b: Float[Array, " m"]
    mass: Float[Array, ""]  # asked for, or the nearest that these items could move
    limit: Float[Array, ""]  # the most that they could move
    possible: Bool[Array, ""]  # the mass asked for is in range, and so are epsilon and weights


def examine(
    cost: Float[Array, "n m"],
    mass: Float[Array, ""],
    epsilon: Float[Array, ""],
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    mask: Bool[Array, "n m"],
) -> Request:
    """Finds the items that can move and how much of what is asked they can."""
    valid = (epsilon > 0) & (a >= 0).all() & (b >= 0).all()
    cost = jnp.where(mask & (a > 0)[:, None] & (b > 0)[None, :], cost, jnp.inf)
    # A cost that is no number is not infinite, and stays, to be reported.
    of_rows, of_columns = (lax.stop_gradient(cost).min(axis) for axis in (1, 0))
    a, b = jnp.where(of_rows != jnp.inf, a, 0.0), jnp.where(of_columns != jnp.inf, b, 0.0)
    limit = jnp.minimum(sum_of(a), sum_of(b))
    # A sum of weights is rounded: asking for all of it must not count as asking for more.
    rounding = 4 * jnp.finfo(cost.dtype).eps * (len(a) + len(b)) ** 0.5
    possible = (mass >= 0.0) & (mass <= limit * (1.0 + rounding))
    clipped = jnp.clip(mass, 0.0, limit)
    # At both ends the derivative in the mass is the one from within.
    moved = jnp.where(possible, _valued(clipped, mass), clipped)
    return Request(cost, of_rows, a, b, moved, limit, possible & valid)


def reduce(request: Request, epsilon: Float[Array, ""]) -> tuple[Problem, Scales]:
    """Takes out items that cannot move, and scales and shifts the numbers.

    Items that cannot move do not touch the others: their weight stays. The least cost is taken from
    all: of costs that hardly differ, float32 would keep few digits after the division. The unit of
    mass is the mass that moves: a plan feels nothing else, however large the weights are.
    """
    cost, of_rows, a, b, moved, limit, _ = request
    smallest = jnp.maximum(_SMALLEST_MASS * limit, jnp.finfo(cost.dtype).tiny)
    smallest = jnp.where(limit > 0, smallest, 1.0)
    unit = lax.stop_gradient(jnp.maximum(moved, smallest))
    a, b, moved = a / unit, b / unit, moved / unit
    mass = jnp.where(moved < 1.0, jnp.where(limit > 0, 1.0, 0.0), moved)

    lowest = of_rows.min()
    shift = jnp.where(lowest < jnp.inf, lowest, 0.0)
    forbidden = cost == jnp.inf
    shifted = jnp.where(forbidden, 0.0, cost - shift) / epsilon
    scaled = jnp.where(forbidden, jnp.inf, shifted)
    least = lax.stop_gradient(jnp.where(of_rows < jnp.inf, of_rows - shift, 0.0) / epsilon)
    return Problem(scaled, least, _side(a, mass), _side(b, mass), mass), Scales(unit, shift, moved)


def _side(weights, mass) -> Side:
    left = sum_of(weights) - mass
    nothing = jnp.finfo(weights.dtype).eps ** 2  # has a logarithm, and is below any rounding
    return Side(weights, _valued(jnp.maximum(left, nothing), left))


def _valued(value, x):
    """A value that changes as `x` does."""
    return lax.stop_gradient(value) + (x - lax.stop_gradient(x))
