"""The solvers that `bench.solver` times.

Each function takes a batch of problems (square costs `[n, n]` or `[batch, n, n]`, with uniform
weights, a mass and epsilon) and a target error. It returns a function that solves them to that
error, or as far as the solver gets, and reports an `Outcome`. Errors are L1 errors of the extended
problem's marginals, as a share of the total weight. POT has no extended problem and its plans move
the right mass from the start, so its error is the L1 distance to its own final plan.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ott.geometry.geometry import Geometry
from ott.problems.linear.linear_problem import LinearProblem
from ott.solvers.linear.sinkhorn import Sinkhorn
from scipy.special import logsumexp

from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.ot.extended import extend

MAX_ITERATIONS = 2000
DUMMY_COST = 100.0  # the authors' xi, in units of the largest cost


class Outcome(NamedTuple):
    """Error and iterations, each the largest of the batch."""

    error: float
    iterations: int


def ours(costs, mass, epsilon, target):
    # The result's error is a share of the mass, ours here a share of the total weight.
    @jax.jit
    def solve(costs):
        result = partial_sinkhorn(
            costs, mass, epsilon=epsilon, threshold=target / mass, max_iterations=MAX_ITERATIONS
        )
        return result.plan, mass * result.marginal_error, result.iterations

    return partial(_solve_batch, solve, jnp.asarray(costs))


def ours_in_a_loop(costs, mass, epsilon, target):
    return _loop(lambda cost: ours(cost, mass, epsilon, target), costs)


def ott(costs, mass, epsilon, target, xi=0.0):
    """ott-jax on the extended problem with a forbidden corner; `vmap` over a batch."""

    def solve(cost):
        problem = _extended(cost, mass, xi * cost.max(), jnp.inf)
        geometry = Geometry(problem.cost, epsilon=epsilon)
        solver = Sinkhorn(threshold=target, max_iterations=MAX_ITERATIONS)
        output = solver(LinearProblem(geometry, problem.p, problem.q))
        plan = output.matrix
        error = _extended_error(plan, problem, jnp)
        return plan[:-1, :-1], error, output.n_iters

    solve = jax.jit(jax.vmap(solve) if costs.ndim == 3 else solve)
    return partial(_solve_batch, solve, jnp.asarray(costs))


ott_literal = partial(ott, xi=DUMMY_COST)


def ott_in_a_loop(costs, mass, epsilon, target):
    return _loop(lambda cost: ott(cost, mass, epsilon, target), costs)


def authors(costs, mass, epsilon, target):
    """L2RM's loop in NumPy and float64: the authors' xi and corner, stopped by the error."""

    def solve(cost):
        cost = np.asarray(cost, np.float64)
        problem = _extended(cost, mass, DUMMY_COST * cost.max(), cost.max())
        scaled, p, q = (np.asarray(array, np.float64) for array in problem)
        scaled = scaled / epsilon
        for iteration, (u, v) in enumerate(authors_iterates(scaled, p, q), start=1):
            plan = np.exp(u[:, None] + v[None, :] - scaled)
            error = np.abs(plan.sum(1) - p).sum()
            if error <= target or iteration == MAX_ITERATIONS:
                return Outcome(error, iteration)

    return partial(_solve_each, solve, costs)


def authors_iterates(scaled, p, q):
    """Yield the potentials divided by epsilon after each iteration of L2RM's loop, endlessly.

    Args:
      scaled: the extended cost divided by epsilon, a NumPy array `[n + 1, m + 1]`.
      p: the weights of its rows.
      q: the weights of its columns.
    """
    v = np.zeros_like(q)
    while True:
        u = np.log(p) - logsumexp(v[None, :] - scaled, axis=1)
        v = np.log(q) - logsumexp(u[:, None] - scaled, axis=0)
        yield u, v


def pot(costs, mass, epsilon, target, method="sinkhorn"):
    """POT's entropic partial solver, whose entropic problem differs but has the same exact limit.

    The number of iterations is doubled until the error is reached.
    """
    from ot.partial import entropic_partial_wasserstein

    weights = np.full(costs.shape[-1], 1 / costs.shape[-1])

    def plan(cost, iterations):
        return entropic_partial_wasserstein(
            weights,
            weights,
            np.asarray(cost, np.float64),
            reg=epsilon,
            m=mass,
            numItermax=iterations,
            stopThr=0.0,
            method=method,
        )

    # The count is chosen here, on the first problem; the timed run does not compute errors.
    first, iterations = costs if costs.ndim == 2 else costs[0], 5
    final = plan(first, MAX_ITERATIONS)

    def error():
        return np.abs(plan(first, iterations) - final).sum()

    while not error() <= target and 2 * iterations < MAX_ITERATIONS:
        iterations *= 2
    outcome = Outcome(float(error()), iterations)
    return partial(_solve_each, lambda cost: (plan(cost, iterations), outcome)[1], costs)


pot_log = partial(pot, method="sinkhorn_log")

SOLVERS = {
    "ours": ours,
    "ott-jax, xi dropped": ott,
    "ott-jax, literal xi": ott_literal,
    "POT": pot,
    "POT, log domain": pot_log,
    "authors' loop, NumPy": authors,
}
LOOPS = {"ours, Python loop": ours_in_a_loop, "ott-jax, Python loop": ott_in_a_loop}


def _extended(cost, mass, xi, corner):
    n = cost.shape[-1]
    weights, mask = jnp.full((n,), 1 / n, cost.dtype), jnp.ones((n, n), bool)
    return extend(jnp.asarray(cost), mass, weights, weights, mask, xi=xi, corner=corner)


def _extended_error(plan, problem, np):
    rows = np.abs(plan.sum(1) - problem.p).sum()
    return np.maximum(rows, np.abs(plan.sum(0) - problem.q).sum())


def _solve_batch(solve, costs) -> Outcome:
    _, error, iterations = jax.block_until_ready(solve(costs))
    return Outcome(float(np.max(error)), int(np.max(iterations)))


def _solve_each(solve, costs) -> Outcome:
    costs = costs if costs.ndim == 3 else costs[None]
    outcomes = [solve(cost) for cost in costs]
    return Outcome(*(max(values) for values in zip(*outcomes, strict=True)))


def _loop(make, costs):
    """Compile one program and call it for each problem."""
    run = make(costs[0])
    return partial(_solve_each, lambda cost: run.func(run.args[0], jnp.asarray(cost)), costs)
