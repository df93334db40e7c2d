"""Normalisation of a partial transport problem: trivial parts are removed and units chosen."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from l2rm_jax.ot.sums import vector_total

# The smallest mass that plans are computed for, as a share of the mass that could move. A smaller
# mass has the same plan, scaled: so little moves that items do not compete for each other's weight.
_SMALLEST_MASS = 1e-12


class Side(NamedTuple):
    """The rows, or the columns, of a problem."""

    weights: Float[Array, " n"]  # 0 for an item that cannot move
    kept: Float[Array, ""]  # total weight that does not move, > 0


class Problem(NamedTuple):
    """Masked partial transport, in units of epsilon (cost) and of the mass (weight)."""

    cost: Float[Array, "n m"]  # cost / epsilon, from 0 up; infinite for a forbidden pair
    row_minima: Float[Array, " n"]  # lowest cost of each row; 0 for a row that cannot move
    rows: Side
    columns: Side
    mass: Float[Array, ""]  # 1, or 0 if nothing can move


class Scales(NamedTuple):
    """Factors that convert a `Problem` back to the caller's units."""

    weight: Float[Array, ""]  # unit of weight
    cost: Float[Array, ""]  # lowest cost, which was subtracted from all costs
    mass: Float[Array, ""]  # mass to move, in that unit; below 1 if the mass is extremely small


class FeasiblePart(NamedTuple):
    """The part of the caller's problem that can be solved."""

    cost: Float[Array, "n m"]  # infinite except for allowed pairs of items with weight
    row_minima: Float[Array, " n"]  # lowest of these costs in each row
    a: Float[Array, " n"]  # weights of rows that have an allowed pair; 0 for other rows
    b: Float[Array, " m"]  # the same for columns
    mass: Float[Array, ""]  # the requested mass, or the nearest mass that these items could move
    limit: Float[Array, ""]  # the largest mass that they could move
    is_feasible: Bool[Array, ""]  # mass, epsilon and weights are all in range


def feasible_part(
    cost: Float[Array, "n m"],
    mass: Float[Array, ""],
    epsilon: Float[Array, ""],
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    mask: Bool[Array, "n m"],
) -> FeasiblePart:
    """Find the items that can move, and clip the mass to their total."""
    in_range = (epsilon > 0) & (a >= 0).all() & (b >= 0).all()
    cost = jnp.where(mask & (a > 0)[:, None] & (b > 0)[None, :], cost, jnp.inf)
    # NaN is not infinite: a NaN cost stays in the problem and keeps it from converging.
    row_minima, column_minima = (lax.stop_gradient(cost).min(axis) for axis in (1, 0))
    a, b = jnp.where(row_minima != jnp.inf, a, 0.0), jnp.where(column_minima != jnp.inf, b, 0.0)
    limit = jnp.minimum(vector_total(a), vector_total(b))
    # The caller's sum of weights is rounded: the full mass must not count as more than all.
    rounding = 4 * jnp.finfo(cost.dtype).eps * (len(a) + len(b)) ** 0.5
    is_possible = (mass >= 0.0) & (mass <= limit * (1.0 + rounding))
    clipped = jnp.clip(mass, 0.0, limit)
    # At both ends of its range the derivative in the mass is the one-sided one, from inside.
    moved = jnp.where(is_possible, replace_value(mass, clipped), clipped)
    return FeasiblePart(cost, row_minima, a, b, moved, limit, is_possible & in_range)


def normalise(part: FeasiblePart, epsilon: Float[Array, ""]) -> tuple[Problem, Scales]:
    """Shift and scale costs and weights, and set the weight of items that cannot move to 0.

    Items that cannot move do not affect the others: they keep their weight. The lowest cost is
    subtracted from all costs before they are divided by epsilon, because float32 would otherwise
    keep few digits of costs that hardly differ. The unit of weight is the mass that moves: a plan
    depends on weights only in proportion to it, however large they are.
    """
    cost, row_minima, a, b, moved, limit, _ = part
    smallest = jnp.maximum(_SMALLEST_MASS * limit, jnp.finfo(cost.dtype).tiny)
    smallest = jnp.where(limit > 0, smallest, 1.0)
    unit = lax.stop_gradient(jnp.maximum(moved, smallest))
    a, b, moved = a / unit, b / unit, moved / unit
    mass = jnp.where(moved < 1.0, jnp.where(limit > 0, 1.0, 0.0), moved)

    lowest = row_minima.min()
    shift = jnp.where(lowest < jnp.inf, lowest, 0.0)
    is_forbidden = cost == jnp.inf
    shifted = jnp.where(is_forbidden, 0.0, cost - shift) / epsilon
    scaled = jnp.where(is_forbidden, jnp.inf, shifted)
    row_minima = jnp.where(row_minima < jnp.inf, row_minima - shift, 0.0) / epsilon
    sides = make_side(a, mass), make_side(b, mass)
    return Problem(scaled, lax.stop_gradient(row_minima), *sides, mass), Scales(unit, shift, moved)


def make_side(weights: Float[Array, " n"], mass: Float[Array, ""]) -> Side:
    """Make a side of items with these weights, of which `mass` moves."""
    kept = vector_total(weights) - mass
    smallest = jnp.finfo(weights.dtype).eps ** 2  # has a logarithm, and is below any rounding
    return Side(weights, replace_value(kept, jnp.maximum(kept, smallest)))


def replace_value(x, value):
    """Return `value`, with the derivative of `x`."""
    return lax.stop_gradient(value) + (x - lax.stop_gradient(x))
