"""What a solve returns, and how far it is from what was asked."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from l2rm_jax.ot.sums import total


class PartialSinkhornResult(NamedTuple):
    """A partial transport plan and how it was reached; every field has the batch's axes.

    The plan is exp((f_i + g_j + price - cost_ij) / epsilon), and row i keeps exp(f_i / epsilon),
    column j exp(g_j / epsilon) of its weight. So the potentials have no gauge.
    """

    plan: Float[Array, "... n m"]  # moved mass; exactly 0 where the mask forbids
    f: Float[Array, "... n"]  # potentials of the rows; 0 for a row without weight
    g: Float[Array, "... m"]  # potentials of the columns
    price: Float[Array, "..."]  # potential of the mass: cut off where none moves or all
    cost: Float[Array, "..."]  # transported cost, <plan, cost>
    value: Float[Array, "..."]  # cost - epsilon * entropy of what is moved and of what stays
    mass: Float[Array, "..."]  # mass moved, the sum of the plan
    iterations: Int[Array, "..."]
    converged: Bool[Array, "..."]  # the stopping rule was met and the mass asked for is possible
    # Both as shares of the mass asked for or moved, whichever is more.
    marginal_error: Float[Array, "..."]  # L1, moved + kept against a or b
    mass_error: Float[Array, "..."]  # moved against asked


class Transport(NamedTuple):
    """A solution in the caller's units."""

    plan: Float[Array, "n m"]
    rows_moved: Float[Array, " n"]  # what each row is to move: the rest of its weight it keeps
    columns_moved: Float[Array, " m"]
    f: Float[Array, " n"]
    g: Float[Array, " m"]
    price: Float[Array, ""]


def marginal_error(transport: Transport) -> Float[Array, ""]:
    rows = jnp.abs(transport.plan.sum(1) - transport.rows_moved).sum()
    columns = jnp.abs(transport.plan.sum(0) - transport.columns_moved).sum()
    return jnp.maximum(rows, columns)


def regularised_value(transport: Transport, cost, mass, epsilon, a, b) -> Float[Array, ""]:
    """The objective, with the gradient that it has at the optimum (the envelope theorem).

    There the plan's own change counts for nothing, and the potentials are the gradient: no solve is
    differentiated. The gradient is that of first order only.
    """
    fixed = lax.stop_gradient(transport)
    kept = lax.stop_gradient(a) - fixed.rows_moved, lax.stop_gradient(b) - fixed.columns_moved
    masses = jnp.concatenate([fixed.plan.ravel(), *kept])
    logs = jnp.log(jnp.where(masses > 0, masses, 1.0))
    value = total(fixed.plan * cost) + epsilon * jnp.sum(masses * logs)
    # Where a weight grows, it stays: potentials are its price, and the entropy's derivative has 1.
    unit = lax.stop_gradient(epsilon)
    of_rows, of_columns = jnp.where(a > 0, fixed.f + unit, 0), jnp.where(b > 0, fixed.g + unit, 0)
    slope = jnp.sum(a * of_rows) + jnp.sum(b * of_columns)
    slope += mass * (fixed.price - unit)
    return value + slope - lax.stop_gradient(slope)
