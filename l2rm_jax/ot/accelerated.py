"""Accelerated iterations on a normalised problem, until its marginals are met.

The iterations are those of `log_domain.py`, computed with products of a kernel and vectors instead
of exponentials, and accelerated by Anderson's method.

If items move nearly all of their weight, their potentials have far to go while the marginals change
by less than float32 resolves. A method that compares iterates, such as Anderson's, then makes no
progress. A Newton step does, because it knows the derivative.

Tried without success: over-relaxation gains less than Anderson's method, and the restarted form of
Anderson's method fails. Annealing epsilon through `start` gains almost nothing, except for values
of epsilon that are too small to converge without it (README.md, feasible plans).
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from l2rm_jax.ot import anderson, conditions
from l2rm_jax.ot.log_domain import (
    Potentials,
    Solution,
    add_log_odds,
    kept_weights,
    log_domain_iteration,
    log_odds,
)
from l2rm_jax.ot.problem import Problem
from l2rm_jax.ot.projection import split_weights
from l2rm_jax.ot.sums import matrix_vector, split_into_blocks, vector_matrix

# The kernel is recomputed when the log of a scaling exceeds this; float32 ends at exp(88).
_MAX_DRIFT = 10.0
# The log of a scaling is clipped to this, in case a sum has underflowed.
_MAX_LOG_SCALING = 40.0
# A scaling of the first iteration beyond this means that the sums have all but underflowed.
_FAR = math.exp(20.0)
# Replaces a sum that has underflowed; below the second, a moved weight counts as underflowed.
_TINY, _SMALLEST_MOVED = 1e-37, 1e-30
# Newton steps per iteration for the potential of a dummy: one in the first iterations, two later.
# Most problems need only the first iterations, which are a fifth cheaper with one step. With one
# step, hard problems would need up to 50% more iterations.
_EARLY_DELTA_STEPS, _LATER_DELTA_STEPS, _EARLY_ITERATIONS = 1, 2, 10
# Iterations before the first Newton step on all potentials. Before each further step, the number of
# iterations grows by a quarter: these iterations correct the rounding errors of the step, and steps
# become rare if only rounding errors are left. After a clipped step, the next one comes sooner.
# Problems of a batch wait for each other while one takes a step.
_FIRST_NEWTON, _NEWTON_FRACTION = 40, 4
# Newton steps are clipped to this many units of epsilon: beyond it the linearisation says nothing.
_MAX_NEWTON_STEP = 3.0


class _State(NamedTuple):
    base: Potentials  # potentials that are in the kernel
    u: Float[Array, " n"]  # scaling of the kernel's rows
    v: Float[Array, " m"]  # scaling of its columns that the next iteration starts from
    v_out: Float[Array, " m"]  # scaling of its columns that the last iteration ended with
    f_dummy: Float[Array, ""]  # potential of the dummy row minus that in the base
    g_dummy: Float[Array, ""]  # potential of the dummy column minus that in the base
    rows_moved: Float[Array, " n"]
    columns_moved: Float[Array, " m"]
    memory: anderson.Memory
    error: Float[Array, ""]
    iterations: Int[Array, ""]
    next_newton: Int[Array, ""]  # number of iterations at which the next Newton step is due


def converge(
    problem: Problem,
    start: Float[Array, " m"],
    threshold: float | Float[Array, ""],
    max_iterations: int | Int[Array, ""],
) -> Solution:
    """Iterate until the marginals of the plan are within `threshold`, in L1; not differentiable.

    An iteration costs two products of a matrix and a vector: the kernel contains the potentials of
    the start of a block of iterations, and later changes scale its rows and columns. A Newton step
    solves a dense system of the size of the shorter side; 2000 iterations include 18 of them if
    none is clipped.

    Args:
        problem: the normalised problem.
        start: column potentials to start from, in units of epsilon.
        threshold: largest acceptable error, as a share of the mass.
        max_iterations: largest number of iterations.
    """

    def is_unfinished(state):
        return (state.error > threshold) & (state.iterations < max_iterations)

    def is_newton_due(state):
        return is_unfinished(state) & (state.iterations >= state.next_newton)

    def stays_in_block(state):
        return is_unfinished(state) & ~is_newton_due(state) & (_drift(state) < _MAX_DRIFT)

    def iterations(kernel, state, delta_steps, most):
        one = partial(_iterate, problem, kernel, delta_steps=delta_steps)
        return lax.while_loop(
            lambda state: stays_in_block(state) & (state.iterations < most), one, state
        )

    def block(carry):
        kernel, state = carry
        # This loop runs at most once, because a step sets the next one later. In a batch, `cond`
        # would run the step for all problems.
        state = lax.while_loop(is_newton_due, partial(_newton_step, problem, kernel), state)
        state = _absorb(state)
        kernel = kernel_of(problem, state.base)
        return kernel, iterations(kernel, state, _LATER_DELTA_STEPS, max_iterations)

    # The first block is outside the loop: in a batch, each turn of the loop copies the kernel.
    kernel, state = _first_iteration(problem, start)
    first = kernel, iterations(kernel, state, _EARLY_DELTA_STEPS, _EARLY_ITERATIONS)
    kernel, end = lax.while_loop(lambda carry: is_unfinished(carry[1]), block, first)
    plan, potentials = _plan_and_potentials(problem, kernel, end)
    moved = end.rows_moved, end.columns_moved
    return Solution(plan, *moved, potentials, end.iterations, end.error)


def _plan_and_potentials(
    problem: Problem, kernel, state: _State
) -> tuple[Float[Array, "n m"], Potentials]:
    """Plan and complete potentials at the end of the last iteration."""
    potentials = Potentials(
        state.base.f + jnp.log(state.u),
        state.base.g + jnp.log(state.v_out),
        state.base.f_dummy + state.f_dummy,
        state.base.g_dummy + state.g_dummy,
    )
    kernel = kernel.reshape(-1, len(state.v))[: len(state.u)]
    plan = state.u[:, None] * kernel * state.v_out[None, :]
    return plan, add_log_odds(problem, potentials)


def _newton_step(problem: Problem, kernel, state: _State) -> _State:
    """Newton step on all potentials, from the end of an iteration.

    At that point columns and mass are (nearly) right, and only the rows are off.
    """
    # The barrier stops the compiler from moving work in front of a loop that seldom runs.
    state = lax.optimization_barrier(state)
    plan, potentials = _plan_and_potentials(problem, kernel, state)
    # Weight minus kept weight would cancel in heavy rows; the moved weight does not.
    missing = state.rows_moved - plan.sum(1)
    rhs = missing, jnp.zeros_like(state.v)
    _, change, price = conditions.solve(plan, *kept_weights(problem, potentials), *rhs)
    is_finite = jnp.isfinite(change).all() & jnp.isfinite(price)
    # The dummy column's potential is not changed: the change of the price goes to the columns and
    # to the dummy row.
    wanted = change + price
    change, price = (
        jnp.where(is_finite, jnp.clip(step, -_MAX_NEWTON_STEP, _MAX_NEWTON_STEP), 0.0)
        for step in (wanted, price)
    )
    is_clipped = is_finite & (jnp.abs(wanted).max() > _MAX_NEWTON_STEP)
    pause = jnp.where(is_clipped, _FIRST_NEWTON, state.iterations) // _NEWTON_FRACTION
    v = state.v_out * jnp.exp(change)
    return state._replace(
        v=v,
        v_out=v,
        f_dummy=state.f_dummy - price,
        memory=anderson.empty_memory(v),
        next_newton=state.iterations + pause,
    )


def _first_iteration(
    problem: Problem, start: Float[Array, " m"]
) -> tuple[Float[Array, "B r m"], _State]:
    """First iteration and its kernel.

    The kernel contains the potentials that rows would have if the cheapest column of each were its
    only one. The entries of a row that moves then underflow only if the same entries of the plan
    do. If a scaling is large nevertheless (the column's entries underflow but it must move, or the
    start is far from everything), the first iteration is done in the log domain instead.
    """
    rows, mass = problem.rows, problem.mass
    moved, kept, g_dummy = split_weights(-problem.row_minima, rows, mass)
    f = jnp.log(moved) + problem.row_minima
    f = jnp.where(moved > _SMALLEST_MOVED, f, _log_scaling(kept, g_dummy, rows, mass))
    f = jnp.where(rows.weights > 0, f, 0.0)
    base = Potentials(f, start, jnp.zeros_like(mass), g_dummy)
    kernel = kernel_of(problem, base)
    state = initial_state(base, (moved, problem.columns.weights), 0)
    state = project(problem, kernel, state, _EARLY_DELTA_STEPS, searches_f_dummy=True)

    def is_far(carry):
        # Small scalings do not count: weights that hardly move need no digits.
        return ~(jnp.maximum(carry[1].u.max(), carry[1].v.max()) < _FAR)

    def in_log_domain(carry):
        # The barrier stops the compiler from moving work in front of a loop that seldom runs.
        (same, from_here), _ = lax.optimization_barrier(((problem, start), carry))
        base, *moved = log_domain_iteration(same, from_here)
        return kernel_of(problem, base), initial_state(base, moved, 1)

    return lax.while_loop(is_far, in_log_domain, (kernel, state))


def initial_state(base: Potentials, moved, iterations: int) -> _State:
    """State whose potentials are all in the kernel and whose error is unknown."""
    u, v, zero = jnp.ones_like(base.f), jnp.ones_like(base.g), jnp.zeros_like(base.f_dummy)
    unknown = anderson.empty_memory(v), zero + jnp.inf
    counts = jnp.int32(iterations), jnp.int32(_FIRST_NEWTON)
    return _State(base, u, v, v, zero, zero, *moved, *unknown, *counts)


def kernel_of(problem: Problem, base: Potentials) -> Float[Array, "B r m"]:
    return split_into_blocks(jnp.exp(base.f[:, None] + base.g[None, :] - problem.cost))


def _iterate(
    problem: Problem, kernel: Float[Array, "B r m"], state: _State, delta_steps: int
) -> _State:
    """One iteration, extrapolated by Anderson's method."""
    new = project(problem, kernel, state, delta_steps)
    weights = jnp.minimum(problem.columns.weights, problem.mass)
    residual = jnp.log(new.v / state.v) * jnp.sqrt(weights)
    change = jnp.log(new.v / state.v_out)
    memory, step = anderson.extrapolate(state.memory, residual, change, new.error)
    v = new.v * jnp.exp(jnp.clip(jnp.nan_to_num(step), -_MAX_DRIFT, _MAX_DRIFT))
    return new._replace(v=v, memory=memory)


def project(
    problem: Problem, kernel, state: _State, delta_steps: int, searches_f_dummy: bool = False
) -> _State:
    """Project onto the rows' weights and the mass, then onto the columns' weights and the mass.

    With `searches_f_dummy`, the dummy row's potential is searched from scratch instead of improved.
    """
    rows, columns, mass, base = problem.rows, problem.columns, problem.mass, state.base
    sums = matrix_vector(kernel, state.v, len(state.u))
    log_kept = base.f + base.g_dummy
    u, moved_rows, g_dummy = _scale_side(sums, log_kept, rows, mass, state.g_dummy, delta_steps)
    sums = vector_matrix(u, kernel)
    log_kept, f_dummy = base.g + base.f_dummy, None if searches_f_dummy else state.f_dummy
    v, moved_columns, f_dummy = _scale_side(sums, log_kept, columns, mass, f_dummy, delta_steps)
    # Before the columns' half, the rows are exact and the columns are off by a factor v / state.v.
    off = _mass_error(moved_rows, rows, mass) + _mass_error(moved_columns, columns, mass)
    return state._replace(
        u=u,
        v=v,
        v_out=v,
        f_dummy=f_dummy,
        g_dummy=g_dummy,
        rows_moved=moved_rows,
        columns_moved=moved_columns,
        error=off + jnp.sum(moved_columns * jnp.abs(1.0 - state.v / v)),
        iterations=state.iterations + 1,
    )


def _mass_error(moved, side, mass):
    """Distance of the moved weights' sum from the mass, summed as differences to round less."""
    return jnp.abs(jnp.sum(moved - side.weights * (mass / (mass + side.kept))))


def _scale_side(sums, log_kept, side, mass, dummy, delta_steps):
    """The scaling that gives one side its weights, the weights it then moves, and its dummy."""
    can_move = side.weights > 0
    sums = jnp.where(can_move, jnp.maximum(sums, _TINY), 1.0)
    gap = jnp.where(can_move, jnp.log(sums) - log_kept, 0.0)
    moved, kept, dummy = split_weights(gap, side, mass, dummy, delta_steps)
    from_kept = jnp.exp(_log_scaling(kept, log_kept + dummy, side, mass))
    scaling = jnp.where(moved > _SMALLEST_MOVED, moved / sums, from_kept)
    scaling = jnp.clip(scaling, math.exp(-_MAX_LOG_SCALING), math.exp(_MAX_LOG_SCALING))
    return jnp.where(can_move, scaling, 1.0), moved, dummy


def _log_scaling(kept, log_kept, side, mass):
    """Log of a scaling from the kept weight, for items whose moved weight has underflowed."""
    return jnp.log(jnp.maximum(kept, _TINY)) - log_kept + log_odds(side, mass)


def _drift(state: _State):
    """Largest absolute log of a scaling."""
    return jnp.maximum(jnp.abs(jnp.log(state.u)).max(), jnp.abs(jnp.log(state.v)).max())


def _absorb(state: _State) -> _State:
    """Move large scalings into the potentials that are in the kernel.

    Small scalings stay, so the kernel stays the same bit for bit: a recomputed kernel has other
    rounding errors, which disturb a solution that has nearly converged.
    """
    base, u, v = state.base, state.u, state.v
    absorbed = state._replace(
        base=Potentials(
            base.f + jnp.log(u),
            base.g + jnp.log(v),
            base.f_dummy + state.f_dummy,
            base.g_dummy + state.g_dummy,
        ),
        u=jnp.ones_like(u),
        v=jnp.ones_like(v),
        v_out=state.v_out / v,
        f_dummy=jnp.zeros_like(state.f_dummy),
        g_dummy=jnp.zeros_like(state.g_dummy),
    )
    is_large = _drift(state) > _MAX_DRIFT / 2
    return jax.tree.map(lambda new, old: jnp.where(is_large, new, old), absorbed, state)
