"""The result of a solve, and its distance from the requested marginals and mass."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from l2rm_jax.ot.gradient import with_gradient


class PartialSinkhornResult(NamedTuple):
    """A partial transport plan with diagnostics; every field has the axes of the batch.

    The plan is exp((f_i + g_j + price - cost_ij) / epsilon). Of its weight, row i keeps
    exp(f_i / epsilon) and column j keeps exp(g_j / epsilon), so no constant can be moved from one
    potential to another: the potentials are unique.
    """

    plan: Float[Array, "... n m"]  # moved mass; exactly 0 for a forbidden pair
    f: Float[Array, "... n"]  # potentials of the rows; 0 for a row without weight
    g: Float[Array, "... m"]  # potentials of the columns; 0 for a column without weight
    price: Float[Array, "..."]  # potential of the mass; clipped if none or all of a side moves
    cost: Float[Array, "..."]  # transported cost, <plan, cost>
    value: Float[Array, "..."]  # cost - epsilon * entropy of moved and kept weights
    mass: Float[Array, "..."]  # moved mass, the sum of the plan
    iterations: Int[Array, "..."]
    converged: Bool[Array, "..."]  # the stopping rule was met and the requested mass is possible
    # Both errors are shares of the requested or the moved mass, whichever is larger.
    marginal_error: Float[Array, "..."]  # L1 distance of moved + kept weight from a, or from b
    mass_error: Float[Array, "..."]  # distance of the moved from the requested mass


class PlanSums(NamedTuple):
    """Row sums, column sums and the total of a plan."""

    rows: Float[Array, " n"]
    columns: Float[Array, " m"]
    total: Float[Array, ""]


class Transport(NamedTuple):
    """A solution in the caller's units."""

    plan: Float[Array, "n m"]
    sums: PlanSums
    cost: Float[Array, ""]  # transported cost
    plan_log_plan: Float[Array, ""]  # <plan, log plan>
    rows_moved: Float[Array, " n"]  # weight that each row should move; it keeps the rest
    columns_moved: Float[Array, " m"]
    f: Float[Array, " n"]
    g: Float[Array, " m"]
    price: Float[Array, ""]


def plan_sums(plan: Float[Array, "n m"]) -> PlanSums:
    """Row sums, column sums and the total of a plan."""
    rows = lax.optimization_barrier(plan.sum(1))  # else the compiler sums all entries once more
    return PlanSums(rows, plan.sum(0), rows.sum())


def plan_log_plan(sums: PlanSums, f, g, price, cost) -> Float[Array, ""]:
    """<plan, log plan> from potentials and transported cost, all in units of epsilon.

    The logarithm of the plan is the sum of these, so none has to be taken.
    """
    return jnp.sum(sums.rows * f) + jnp.sum(sums.columns * g) + sums.total * price - cost


def marginal_error(transport: Transport) -> Float[Array, ""]:
    """L1 distance between the plan's marginals and the weights to move; the larger side counts."""
    rows = jnp.abs(transport.sums.rows - transport.rows_moved).sum()
    columns = jnp.abs(transport.sums.columns - transport.columns_moved).sum()
    return jnp.maximum(rows, columns)


def regularised_value(transport: Transport, cost, mass, epsilon, a, b) -> Float[Array, ""]:
    """The objective, with its gradient at the optimum by the envelope theorem.

    At the optimum a change of the plan does not change the objective to first order, and the
    potentials are the gradient, so no solve is differentiated. Second derivatives are wrong.
    """
    kept = jnp.concatenate([a - transport.rows_moved, b - transport.columns_moved])
    kept_log_kept = jnp.sum(kept * jnp.log(jnp.where(kept > 0, kept, 1.0)))
    negative_entropy = transport.plan_log_plan + kept_log_kept
    # Added weight is kept: the potential is the price of that, and the entropy's derivative adds 1.
    sides = (a, transport.f), (b, transport.g)
    prices = (jnp.where(weights > 0, x + epsilon, 0.0) for weights, x in sides)
    gradient = transport.plan, transport.price - epsilon, negative_entropy, *prices
    value = transport.cost + epsilon * negative_entropy
    return with_gradient(value, lax.stop_gradient(gradient), (cost, mass, epsilon, a, b))
