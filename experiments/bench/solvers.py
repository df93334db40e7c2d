"""The solvers that are timed: each takes a batch of problems to an error, or as near as it gets.

A problem: a square cost, uniform weights, a mass, epsilon. Errors are L1, as a share of the weight:
of the extended problem's marginals where there is one. POT's problem has none, and its plans move
the right mass from the start: theirs is the distance to the plan that it gets to in the end.
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
DUMMY_COST = 100.0  # of the authors: xi in units of the largest cost


class Found(NamedTuple):
    error: float  # the largest of the batch
    iterations: int  # likewise


def ours(costs, mass, epsilon, target):
    # Errors of the bench are shares of the total weight, those of the result are of the mass.
    @jax.jit
    def solve(costs):
        result = partial_sinkhorn(
            costs, mass, epsilon=epsilon, threshold=target / mass, max_iterations=MAX_ITERATIONS
        )
        return result.plan, mass * result.marginal_error, result.iterations

    return partial(_run, solve, jnp.asarray(costs))


def ours_in_a_loop(costs, mass, epsilon, target):
    return _loop(lambda cost: ours(cost, mass, epsilon, target), costs)


def ott(costs, mass, epsilon, target, xi=0.0):
    """ott-jax on the extended problem, the corner forbidden; `vmap` over a batch."""

    def solve(cost):
        problem = _extended(cost, mass, xi * cost.max(), jnp.inf)
        geometry = Geometry(problem.cost, epsilon=epsilon)
        solver = Sinkhorn(threshold=target, max_iterations=MAX_ITERATIONS)
        output = solver(LinearProblem(geometry, problem.p, problem.q))
        plan = output.matrix
        error = _extended_error(plan, problem, jnp)
        return plan[:-1, :-1], error, output.n_iters

    solve = jax.jit(jax.vmap(solve) if costs.ndim == 3 else solve)
    return partial(_run, solve, jnp.asarray(costs))


ott_literal = partial(ott, xi=DUMMY_COST)


def ott_in_a_loop(costs, mass, epsilon, target):
    return _loop(lambda cost: ott(cost, mass, epsilon, target), costs)


def authors(costs, mass, epsilon, target):
    """L2RM's loop in NumPy, float64: their xi and corner, stopped by the error instead."""

    def solve(cost):
        cost = np.asarray(cost, np.float64)
        problem = _extended(cost, mass, DUMMY_COST * cost.max(), cost.max())
        scaled, p, q = (np.asarray(array, np.float64) for array in problem)
        scaled = scaled / epsilon
        for iteration, (u, v) in enumerate(authors_iterates(scaled, p, q), start=1):
            plan = np.exp(u[:, None] + v[None, :] - scaled)
            error = np.abs(plan.sum(1) - p).sum()
            if error <= target or iteration == MAX_ITERATIONS:
                return Found(error, iteration)

    return partial(_each, solve, costs)


def authors_iterates(scaled, p, q):
    """The potentials over epsilon after each iteration of L2RM's loop, without end.

    `scaled` is the extended cost over epsilon, `p` and `q` its weights; all NumPy.
    """
    v = np.zeros_like(q)
    while True:
        u = np.log(p) - logsumexp(v[None, :] - scaled, axis=1)
        v = np.log(q) - logsumexp(u[:, None] - scaled, axis=0)
        yield u, v


def pot(costs, mass, epsilon, target, method="sinkhorn"):
    """POT's entropic partial solver: of another entropic problem, with the same exact limit. It is
    given twice as many iterations until it is there."""
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

    # The count is found beforehand, on the first problem: the run that is timed looks at no error.
    first, iterations = costs if costs.ndim == 2 else costs[0], 5
    end = plan(first, MAX_ITERATIONS)

    def error():
        return np.abs(plan(first, iterations) - end).sum()

    while not error() <= target and 2 * iterations < MAX_ITERATIONS:
        iterations *= 2
    found = Found(float(error()), iterations)
    return partial(_each, lambda cost: (plan(cost, iterations), found)[1], costs)


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


def _run(solve, costs) -> Found:
    _, error, iterations = jax.block_until_ready(solve(costs))
    return Found(float(np.max(error)), int(np.max(iterations)))


def _each(solve, costs) -> Found:
    costs = costs if costs.ndim == 3 else costs[None]
    found = [solve(cost) for cost in costs]
    return Found(*(max(values) for values in zip(*found, strict=True)))


def _loop(make, costs):
    """One compiled program, called for each problem."""
    run = make(costs[0])
    return partial(_each, lambda cost: run.func(run.args[0], jnp.asarray(cost)), costs)
