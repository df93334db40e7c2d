r"""Solves a reduced problem: by plain iterations in the log domain, or by accelerated ones.

An iteration projects onto the rows' weights together with the mass, then onto the columns' weights
together with the mass (`projection.py`), so both half-way plans move exactly the mass asked for.
Sinkhorn on the extended problem treats the dummies as one more row and column and must first price
them, which at a small mass takes hundreds of iterations.

Where items move nearly all of their weight, potentials run far while the marginals hardly change,
by less than float32 can tell: no acceleration that compares iterates gets on there. A Newton step,
which has the derivative, does.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from l2rm_jax.ot import anderson, conditions
from l2rm_jax.ot.problem import Problem, Side
from l2rm_jax.ot.projection import shares
from l2rm_jax.ot.sums import column_sums, in_blocks, row_sums, total

# Scalings may grow to exp(+-_DRIFT) before the kernel is computed anew; float32 ends at exp(88).
_DRIFT = 10.0
_LARGEST = 40.0  # and are never let beyond exp(+-_LARGEST), whatever underflowed
_FAR = math.exp(20.0)  # the scaling of a first iteration that had hardly anything to scale
_TINY, _LEAST_MOVED = 1e-37, 1e-30  # stands for what underflowed; is about to
# Newton steps for a dummy's potential, an iteration: one in the first few, which are all that most
# problems need and a fifth cheaper so, then two; hard problems need up to half as many iterations
# again with one.
_STEPS, _LATER_STEPS, _FEW = 1, 2, 10
# Iterations before the first Newton step. Before the next come a quarter as many as so far: they
# settle what its rounding disturbs, and where only rounding is left, the steps grow rare; not after
# a step that was cut short, which has far to go. Problems of a batch wait for each other where one
# is taken.
_FIRST_NEWTON, _NEWTON_EVERY = 40, 4
_LONGEST_NEWTON_STEP = 3.0  # in units of epsilon: beyond it the linearisation means nothing


class Potentials(NamedTuple):
    """In units of epsilon: the plan is exp(f_i + g_j - cost_ij); row i leaves exp(f_i + g_dummy),
    column j exp(f_dummy + g_j). During the iteration the dummies' are short of log odds."""

    f: Float[Array, " n"]
    g: Float[Array, " m"]
    f_dummy: Float[Array, ""]
    g_dummy: Float[Array, ""]


class Solution(NamedTuple):
    plan: Float[Array, "n m"]
    rows_moved: Float[Array, " n"]  # what each row is to move
    columns_moved: Float[Array, " m"]
    potentials: Potentials
    iterations: Int[Array, ""]
    error: Float[Array, ""]  # L1, of what the rows move and the mass, or of the last iterate


def iterate(problem: Problem, start: Float[Array, " m"], iterations: int) -> Solution:
    """Plain iterations in the log domain; forward and reverse mode go through them."""

    def step(state, _):
        return _log_domain(problem, state[0].g), None

    rows, columns, zero = problem.rows.weights, problem.columns.weights, problem.mass * 0.0
    first = Potentials(jnp.zeros_like(rows), start, zero, zero)
    (end, rows_moved, columns_moved), _ = lax.scan(step, (first, rows, columns), length=iterations)
    plan = jnp.exp(end.f[:, None] + end.g[None, :] - problem.cost)
    off = jnp.abs(plan.sum(1) - rows_moved).sum() + jnp.abs(total(plan) - problem.mass)
    moved, error = (rows_moved, columns_moved), lax.stop_gradient(off)
    return Solution(plan, *moved, _complete(problem, end), jnp.int32(iterations), error)


def _log_odds(side: Side, mass: Float[Array, ""]) -> Float[Array, ""]:
    """Of moving, for an item like all others."""
    return jnp.log(jnp.maximum(mass, jnp.finfo(mass.dtype).tiny)) - jnp.log(side.left)


def _complete(problem: Problem, potentials: Potentials) -> Potentials:
    return potentials._replace(
        f_dummy=potentials.f_dummy - _log_odds(problem.columns, problem.mass),
        g_dummy=potentials.g_dummy - _log_odds(problem.rows, problem.mass),
    )


def left(problem: Problem, potentials: Potentials) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """What rows and columns keep, to the smallest digits, which a difference of weights has not."""
    f, g, f_dummy, g_dummy = potentials
    sides = (problem.rows, f + g_dummy), (problem.columns, g + f_dummy)
    rows, columns = (jnp.where(side.weights > 0, jnp.exp(log), 0.0) for side, log in sides)
    return rows, columns


def _log_domain(problem: Problem, g: Float[Array, " m"]):
    """One iteration: the potentials, and what the rows and what the columns move."""
    exponents = g[None, :] - problem.cost
    f, g_dummy, rows_moved = _potentials(exponents, problem.rows, problem.mass, 1)
    exponents = f[:, None] - problem.cost
    g, f_dummy, columns_moved = _potentials(exponents, problem.columns, problem.mass, 0)
    return Potentials(f, g, f_dummy, g_dummy), rows_moved, columns_moved


def _potentials(exponents, side, mass, axis):
    alive = side.weights > 0
    # An item that cannot move has no finite exponent, and its potential touches nobody.
    exponents = jnp.where(jnp.expand_dims(alive, axis), exponents, 0.0)
    log_sum = logsumexp(exponents, axis=axis)
    moved, _, dummy = shares(log_sum, side, mass)
    # Log odds go to where they are least: as a difference of large numbers they would cost digits.
    log_odds = _log_odds(side, mass)
    low, high = jnp.minimum(log_odds, 0.0), jnp.maximum(log_odds, 0.0)
    log_weight = jnp.log(jnp.where(alive, side.weights * jnp.exp(low), 1.0))
    return log_weight - jnp.logaddexp(log_sum + low, dummy - high), dummy, moved


class _State(NamedTuple):
    base: Potentials  # what is in the kernel
    u: Float[Array, " n"]  # scaling of its rows
    v: Float[Array, " m"]  # and of its columns: the next iteration's start,
    v_out: Float[Array, " m"]  # the last one's end
    f_dummy: Float[Array, ""]  # beyond the base's
    g_dummy: Float[Array, ""]
    rows_moved: Float[Array, " n"]
    columns_moved: Float[Array, " m"]
    memory: anderson.Memory
    error: Float[Array, ""]
    iterations: Int[Array, ""]
    newton: Int[Array, ""]  # the iteration after which the next Newton step is due


def converge(
    problem: Problem,
    start: Float[Array, " m"],
    threshold: float | Float[Array, ""],
    max_iterations: int | Int[Array, ""],
) -> Solution:
    """Accelerated iterations until the marginals of the plan are within `threshold`, in L1.

    Two products of a matrix and a vector make an iteration: the potentials of the start of a block
    are in the kernel, later changes scale its rows and columns. A Newton step, of which 2000
    iterations take 18 where none is cut short, solves a dense system of the size of the shorter
    side. Not differentiable.
    """

    def unfinished(state):
        return (state.error > threshold) & (state.iterations < max_iterations)

    def due(state):
        return unfinished(state) & (state.iterations >= state.newton)

    def going_on(state):
        return unfinished(state) & ~due(state) & (_drift(state) < _DRIFT)

    def iterations(kernel, state, steps, most):
        one = partial(_iterate, problem, kernel, steps=steps)
        return lax.while_loop(lambda state: going_on(state) & (state.iterations < most), one, state)

    def block(carry):
        kernel, state = carry
        # At most one turn, as a step is due later then: `cond` would, in a batch, take both ways.
        state = lax.while_loop(due, partial(_newton, problem, kernel), state)
        state = _absorb(state)
        kernel = _kernel(problem, state.base)
        return kernel, iterations(kernel, state, _LATER_STEPS, max_iterations)

    # The first block stands apart: a batch has to copy the kernel in each turn of the outer loop.
    kernel, state = _first(problem, start)
    first = kernel, iterations(kernel, state, _STEPS, _FEW)
    kernel, end = lax.while_loop(lambda carry: unfinished(carry[1]), block, first)
    plan, potentials = _reached(problem, kernel, end)
    moved = end.rows_moved, end.columns_moved
    return Solution(plan, *moved, potentials, end.iterations, end.error)


def _reached(problem: Problem, kernel, state: _State) -> tuple[Float[Array, "n m"], Potentials]:
    """The plan of the last iteration and its potentials."""
    potentials = Potentials(
        state.base.f + jnp.log(state.u),
        state.base.g + jnp.log(state.v_out),
        state.base.f_dummy + state.f_dummy,
        state.base.g_dummy + state.g_dummy,
    )
    kernel = kernel.reshape(-1, len(state.v))[: len(state.u)]
    plan = state.u[:, None] * kernel * state.v_out[None, :]
    return plan, _complete(problem, potentials)


def _newton(problem: Problem, kernel, state: _State) -> _State:
    """From the end of an iteration, where columns and mass are (nearly) right and rows are off."""
    # The barrier keeps the compiler from working out anything of what the step does not change
    # before a loop that mostly takes no turn.
    state = lax.optimization_barrier(state)
    plan, potentials = _reached(problem, kernel, state)
    off = state.rows_moved - plan.sum(1)  # weights less what stays would cancel in heavy rows
    right = off, jnp.zeros_like(state.v)
    _, change, price = conditions.solve(plan, *left(problem, potentials), *right)
    finite = jnp.isfinite(change).all() & jnp.isfinite(price)
    # The dummy column's potential stays: the price goes to the columns and the dummy row.
    wanted = change + price
    change, price = (
        jnp.where(finite, jnp.clip(step, -_LONGEST_NEWTON_STEP, _LONGEST_NEWTON_STEP), 0.0)
        for step in (wanted, price)
    )
    cut_short = finite & (jnp.abs(wanted).max() > _LONGEST_NEWTON_STEP)
    rest = jnp.where(cut_short, _FIRST_NEWTON, state.iterations) // _NEWTON_EVERY
    v = state.v_out * jnp.exp(change)
    return state._replace(
        v=v,
        v_out=v,
        f_dummy=state.f_dummy - price,
        memory=anderson.forget(v),
        newton=state.iterations + rest,
    )


def _first(problem: Problem, start: Float[Array, " m"]) -> tuple[Float[Array, "B r m"], _State]:
    """The first iteration and its kernel, in which rows have what they would have if their cheapest
    column were their only one.

    So the entries of a row that moves underflow no more than its plan's do. Where a scaling is
    large, because those of a column that must move do, or the start is far from everything, it is
    an iteration in the log domain instead.
    """
    rows, mass = problem.rows, problem.mass
    moved, stays, g_dummy = shares(-problem.least, rows, mass)
    f, rest = jnp.log(moved) + problem.least, _from_what_stays(stays, g_dummy, rows, mass)
    f = jnp.where(moved > _LEAST_MOVED, f, rest)
    f = jnp.where(rows.weights > 0, f, 0.0)
    base = Potentials(f, start, jnp.zeros_like(mass), g_dummy)
    kernel, state = _kernel(problem, base), _begin(base, (moved, problem.columns.weights), 0)
    state = _project(problem, kernel, state, _STEPS, cold=True)

    def far(carry):
        # Small scalings are no sign of it: what hardly moves needs no digits.
        return ~(jnp.maximum(carry[1].u.max(), carry[1].v.max()) < _FAR)

    def in_log_domain(carry):
        # The barrier keeps the compiler from working it out before a loop that hardly takes a turn.
        (same, from_here), _ = lax.optimization_barrier(((problem, start), carry))
        base, *moved = _log_domain(same, from_here)
        return _kernel(problem, base), _begin(base, moved, 1)

    return lax.while_loop(far, in_log_domain, (kernel, state))


def _begin(base: Potentials, moved, iterations: int) -> _State:
    """All is in the kernel, and nothing is known of how far it is from the solution."""
    u, v, zero = jnp.ones_like(base.f), jnp.ones_like(base.g), jnp.zeros_like(base.f_dummy)
    unknown = anderson.forget(v), zero + jnp.inf
    counts = jnp.int32(iterations), jnp.int32(_FIRST_NEWTON)
    return _State(base, u, v, v, zero, zero, *moved, *unknown, *counts)


def _kernel(problem: Problem, base: Potentials) -> Float[Array, "B r m"]:
    return in_blocks(jnp.exp(base.f[:, None] + base.g[None, :] - problem.cost))


def _iterate(problem: Problem, kernel: Float[Array, "B r m"], state: _State, steps: int) -> _State:
    new = _project(problem, kernel, state, steps)
    weights = jnp.minimum(problem.columns.weights, problem.mass)
    residual = jnp.log(new.v / state.v) * jnp.sqrt(weights)
    change = jnp.log(new.v / state.v_out)
    memory, step = anderson.extrapolate(state.memory, residual, change, new.error)
    v = new.v * jnp.exp(jnp.clip(jnp.nan_to_num(step), -_DRIFT, _DRIFT))
    return new._replace(v=v, memory=memory)


def _project(problem: Problem, kernel, state: _State, steps: int, cold: bool = False) -> _State:
    """Rows, then columns; `cold` where nothing is known of the dummy row's potential."""
    rows, columns, mass, base = problem.rows, problem.columns, problem.mass, state.base
    sums = row_sums(kernel, state.v, len(state.u))
    u, moved_rows, g_dummy = _scale(sums, base.f + base.g_dummy, rows, mass, state.g_dummy, steps)
    sums = column_sums(u, kernel)
    f_dummy = None if cold else state.f_dummy
    v, moved_columns, f_dummy = _scale(sums, base.g + base.f_dummy, columns, mass, f_dummy, steps)
    # The rows are exact before the columns' half, and the columns off by the factor v / state.v.
    off = _off(moved_rows, rows, mass) + _off(moved_columns, columns, mass)
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


def _off(moved, side, mass):
    """How far the sum of what moves is from the mass, term by term, where roundings do not add."""
    return jnp.abs(jnp.sum(moved - side.weights * (mass / (mass + side.left))))


def _scale(sums, log_left, side, mass, dummy, steps):
    """The scaling of one side that gives it its weights, what it then moves, and its dummy."""
    alive = side.weights > 0
    sums = jnp.where(alive, jnp.maximum(sums, _TINY), 1.0)
    gap = jnp.where(alive, jnp.log(sums) - log_left, 0.0)
    moved, stays, dummy = shares(gap, side, mass, dummy, steps)
    rest = jnp.exp(_from_what_stays(stays, log_left + dummy, side, mass))
    scaling = jnp.where(moved > _LEAST_MOVED, moved / sums, rest)
    scaling = jnp.clip(scaling, math.exp(-_LARGEST), math.exp(_LARGEST))
    return jnp.where(alive, scaling, 1.0), moved, dummy


def _from_what_stays(stays, log_left, side, mass):
    """The logarithm of a scaling, where what moves has underflowed."""
    return jnp.log(jnp.maximum(stays, _TINY)) - log_left + _log_odds(side, mass)


def _drift(state: _State):
    return jnp.maximum(jnp.abs(jnp.log(state.u)).max(), jnp.abs(jnp.log(state.v)).max())


def _absorb(state: _State) -> _State:
    """Moves large scalings into the kernel's potentials; small ones stay, and so, bit for bit,
    does the kernel, whose rounding would otherwise disturb what has nearly converged."""
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
    large = _drift(state) > _DRIFT / 2
    return jax.tree.map(lambda new, old: jnp.where(large, new, old), absorbed, state)
