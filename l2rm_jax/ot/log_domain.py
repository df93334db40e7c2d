"""Potentials of a normalised problem, and plain iterations on them in the log domain.

An iteration projects onto the plans with the right row weights and mass, then onto those with the
right column weights and mass (`projection.py`), so the plan moves exactly the mass asked for after
each half. Sinkhorn on the extended problem treats the dummies as one more row and column. It must
find their potentials first, which takes hundreds of iterations at a small mass.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from l2rm_jax.ot.problem import Problem, Side
from l2rm_jax.ot.projection import split_weights
from l2rm_jax.ot.sums import matrix_total


class Potentials(NamedTuple):
    """Potentials in units of epsilon.

    The plan is exp(f_i + g_j - cost_ij). Row i keeps exp(f_i + g_dummy), column j keeps
    exp(f_dummy + g_j). During the iterations the log odds are left out of the dummies' potentials;
    `add_log_odds` adds them.
    """

    f: Float[Array, " n"]
    g: Float[Array, " m"]
    f_dummy: Float[Array, ""]
    g_dummy: Float[Array, ""]


class Solution(NamedTuple):
    """Plan after the last iteration, with its potentials."""

    plan: Float[Array, "n m"]
    rows_moved: Float[Array, " n"]  # weight that each row should move
    columns_moved: Float[Array, " m"]
    potentials: Potentials
    iterations: Int[Array, ""]
    error: Float[Array, ""]  # L1 error of marginals and mass; `authors.py` has its own


def iterate(problem: Problem, start: Float[Array, " m"], iterations: int) -> Solution:
    """Run plain iterations, differentiable in forward and in reverse mode.

    Args:
        problem: the normalised problem.
        start: column potentials to start from, in units of epsilon.
        iterations: number of iterations.
    """

    def step(state, _):
        return log_domain_iteration(problem, state[0].g), None

    rows, columns, zero = problem.rows.weights, problem.columns.weights, problem.mass * 0.0
    first = Potentials(jnp.zeros_like(rows), start, zero, zero)
    (end, rows_moved, columns_moved), _ = lax.scan(step, (first, rows, columns), length=iterations)
    plan = jnp.exp(end.f[:, None] + end.g[None, :] - problem.cost)
    off = jnp.abs(plan.sum(1) - rows_moved).sum() + jnp.abs(matrix_total(plan) - problem.mass)
    moved, error = (rows_moved, columns_moved), lax.stop_gradient(off)
    return Solution(plan, *moved, add_log_odds(problem, end), jnp.int32(iterations), error)


def log_domain_iteration(problem: Problem, g: Float[Array, " m"]):
    """Run one iteration from column potentials `g`.

    Returns:
        The new potentials, the weight that each row should move, and the same for columns.
    """
    exponents = g[None, :] - problem.cost
    f, g_dummy, rows_moved = _update_side(exponents, problem.rows, problem.mass, 1)
    exponents = f[:, None] - problem.cost
    g, f_dummy, columns_moved = _update_side(exponents, problem.columns, problem.mass, 0)
    return Potentials(f, g, f_dummy, g_dummy), rows_moved, columns_moved


def log_odds(side: Side, mass: Float[Array, ""]) -> Float[Array, ""]:
    """Log odds of moving, for an item of a side whose items are all equal."""
    return jnp.log(jnp.maximum(mass, jnp.finfo(mass.dtype).tiny)) - jnp.log(side.kept)


def add_log_odds(problem: Problem, potentials: Potentials) -> Potentials:
    """Complete the dummies' potentials by the log odds that the iterations leave out."""
    return potentials._replace(
        f_dummy=potentials.f_dummy - log_odds(problem.columns, problem.mass),
        g_dummy=potentials.g_dummy - log_odds(problem.rows, problem.mass),
    )


def kept_weights(
    problem: Problem, potentials: Potentials
) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """Weight that each row and each column keeps, from complete potentials.

    Unlike weight minus moved weight, this has full relative precision.
    """
    f, g, f_dummy, g_dummy = potentials
    sides = (problem.rows, f + g_dummy), (problem.columns, g + f_dummy)
    rows, columns = (jnp.where(side.weights > 0, jnp.exp(log), 0.0) for side, log in sides)
    return rows, columns


def _update_side(exponents, side, mass, axis):
    """Potentials of one side, the other side's dummy potential, and the moved weights."""
    # The exponents of an item that cannot move are infinite, and its potential is not used.
    can_move = jnp.expand_dims(side.weights > 0, axis)
    log_sum = logsumexp(jnp.where(can_move, exponents, 0.0), axis=axis)
    return update_potentials(log_sum, side, mass)


def update_potentials(
    log_sum: Float[Array, " n"], side: Side, mass: Float[Array, ""]
) -> tuple[Float[Array, " n"], Float[Array, ""], Float[Array, " n"]]:
    """Potentials that give one side its weights and the mass.

    Args:
        log_sum: log of the kernel's sum for each item; any finite value for one without weight.
        side: the side.
        mass: mass to move.

    Returns:
        The side's potentials, the other side's dummy potential, and the moved weights.
    """
    moved, _, dummy = split_weights(log_sum, side, mass)
    # Apply the log odds where they make a term smaller: a difference of large numbers loses digits.
    odds = log_odds(side, mass)
    low, high = jnp.minimum(odds, 0.0), jnp.maximum(odds, 0.0)
    log_weight = jnp.log(jnp.where(side.weights > 0, side.weights * jnp.exp(low), 1.0))
    return log_weight - jnp.logaddexp(log_sum + low, dummy - high), dummy, moved
