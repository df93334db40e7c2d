"""What a solve returns, and how far it is from what was asked."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


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
    rows_moved: Float[Array, " n"]  # what each row is to move: the rest of its weight it keeps
    columns_moved: Float[Array, " m"]
    f: Float[Array, " n"]
    g: Float[Array, " m"]
    price: Float[Array, ""]


def sums_of(plan: Float[Array, "n m"]) -> Sums:
    rows = lax.optimization_barrier(plan.sum(1))  # the compiler would sum all entries once more
    return Sums(rows, plan.sum(0), rows.sum())


def marginal_error(transport: Transport) -> Float[Array, ""]:
    rows = jnp.abs(transport.sums.rows - transport.rows_moved).sum()
    columns = jnp.abs(transport.sums.columns - transport.columns_moved).sum()
    return jnp.maximum(rows, columns)


def regularised_value(transport: Transport, cost, mass, epsilon, a, b) -> Float[Array, ""]:
    """The objective, with the gradient that it has at the optimum (the envelope theorem).

    There the plan's own change counts for nothing, and the potentials are the gradient: no solve is
    differentiated. The gradient is that of first order only.
    """
    sums, f, g, price = transport.sums, transport.f, transport.g, transport.price
    # The logarithms of the plan are in potentials and costs: epsilon <plan, log plan>.
    moves = jnp.sum(sums.rows * f) + jnp.sum(sums.columns * g) + sums.total * price - transport.cost
    kept = jnp.concatenate([a - transport.rows_moved, b - transport.columns_moved])
    stays = epsilon * jnp.sum(kept * jnp.log(jnp.where(kept > 0, kept, 1.0)))
    # Where a weight grows, it stays: potentials are its price, and the entropy's derivative has 1.
    prices = (jnp.where(w > 0, x + epsilon, 0.0) for w, x in ((a, f), (b, g)))
    gradient = transport.plan, price - epsilon, (moves + stays) / epsilon, *prices
    return _with_gradient(transport.cost + moves + stays, gradient, (cost, mass, epsilon, a, b))


@jax.custom_jvp
def _with_gradient(value, gradient, arguments):
    """The value, as a function of the arguments that has this gradient."""
    return value


@_with_gradient.defjvp
def _change(primals, tangents):
    (value, gradient, _), (*_, changes) = primals, tangents
    return value, sum(jnp.sum(x * dx) for x, dx in zip(gradient, changes, strict=True))
