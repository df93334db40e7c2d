"""What a solve returns, and how far it is from what was asked."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from l2rm_jax.ot.gradient import with_gradient


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


class Sums(NamedTuple):
    """Of a plan."""

    rows: Float[Array, " n"]
    columns: Float[Array, " m"]
    total: Float[Array, ""]


class Transport(NamedTuple):
    """A solution in the caller's units."""

    plan: Float[Array, "n m"]
    sums: Sums
    cost: Float[Array, ""]  # of the plan
    logs: Float[Array, ""]  # <plan, log plan>
    rows_moved: Float[Array, " n"]  # what each row is to move: the rest of its weight it keeps
    columns_moved: Float[Array, " m"]
    f: Float[Array, " n"]
    g: Float[Array, " m"]
    price: Float[Array, ""]


def sums_of(plan: Float[Array, "n m"]) -> Sums:
    rows = lax.optimization_barrier(plan.sum(1))  # the compiler would sum all entries once more
    return Sums(rows, plan.sum(0), rows.sum())


def logs(sums: Sums, f, g, price, cost) -> Float[Array, ""]:
    """<plan, log plan>, from potentials and the plan's cost over epsilon: no logarithm is taken."""
    return jnp.sum(sums.rows * f) + jnp.sum(sums.columns * g) + sums.total * price - cost


def marginal_error(transport: Transport) -> Float[Array, ""]:
    rows = jnp.abs(transport.sums.rows - transport.rows_moved).sum()
    columns = jnp.abs(transport.sums.columns - transport.columns_moved).sum()
    return jnp.maximum(rows, columns)


def regularised_value(transport: Transport, cost, mass, epsilon, a, b) -> Float[Array, ""]:
    """The objective, with the gradient that it has at the optimum (the envelope theorem).

    There the plan's own change counts for nothing, and the potentials are the gradient: no solve is
    differentiated. The gradient is that of first order only.
    """
    kept = jnp.concatenate([a - transport.rows_moved, b - transport.columns_moved])
    entropy = transport.logs + jnp.sum(kept * jnp.log(jnp.where(kept > 0, kept, 1.0)))
    # Where a weight grows, it stays: potentials are its price, and the entropy's derivative has 1.
    sides = (a, transport.f), (b, transport.g)
    prices = (jnp.where(weights > 0, x + epsilon, 0.0) for weights, x in sides)
    gradient = transport.plan, transport.price - epsilon, entropy, *prices
    value = transport.cost + epsilon * entropy
    return with_gradient(value, lax.stop_gradient(gradient), (cost, mass, epsilon, a, b))
