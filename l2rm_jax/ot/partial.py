r"""Masked partial optimal transport with entropic regularisation, through ott-jax.

Partial transport moves only ``mass`` of the two measures (L2RM Eq. 7). It becomes an ordinary
transport problem by adding one dummy row and one dummy column that take what is not moved
(L2RM supplement Eq. 1-3, after Chapel et al. 2020):

.. math::

    \min_{\pi \ge 0} \langle \pi, \hat C \rangle - \epsilon H(\pi), \quad
    \pi 1 = [a, |b| - s], \quad \pi^\top 1 = [b, |a| - s], \quad
    \hat C = \begin{bmatrix} C & 0 \\ 0 & A \end{bmatrix}.

The paper pays ``xi > 0`` for the dummies and ``2 xi + A`` in the corner. A constant added to a
row or a column changes the potentials only, never the plan, so ``xi`` is dropped here: large
potentials are what makes float32 stall. ``A`` does matter, see `partial_sinkhorn`.

References:
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
    Chapel et al., Partial Optimal Transport with Applications on Positive-Unlabeled Learning,
    NeurIPS 2020.
    Lehmann et al., A note on overrelaxation in the Sinkhorn algorithm, Optim. Lett. 2022.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int
from ott.geometry.geometry import Geometry
from ott.problems.linear.linear_problem import LinearProblem
from ott.solvers.linear.acceleration import Momentum
from ott.solvers.linear.sinkhorn import Sinkhorn

# Stands for a weight of zero: its logarithm is finite, so neither potentials nor their implicit
# gradients meet an infinity, and it is too small to be seen in any float32 sum.
_NO_WEIGHT = 1e-20
# The smallest moved mass, relative to what could move, that the initial point is built for.
_SMALLEST_MASS = 1e-6
# Over-relaxes adaptively, by the decrease of the error between iterations 10 and 20, if by then
# the error is small enough for an estimate.
_MOMENTUM = Momentum(start=20, error_threshold=0.5)
# (threshold, max_iterations) of the two modes.
_STOP = {"converged": (1e-5, 2000), "l2rm": (1e-3, 1000)}


class PartialSinkhornResult(NamedTuple):
    """A partial transport plan and how it was reached."""

    plan: Float[Array, "n m"]  # moved mass; exactly 0 where the mask forbids
    iterations: Int[Array, ""]  # Sinkhorn iterations run (mode "converged" counts in tens)
    converged: Bool[Array, ""]  # the stopping rule was met and the mass asked for is possible
    mass: Float[Array, ""]  # mass moved, the sum of the plan
    cost: Float[Array, ""]  # cost of the plan, <plan, cost>


class _Extended(NamedTuple):
    """The extended problem: dummies last."""

    cost: Float[Array, "n+1 m+1"]
    p: Float[Array, "n+1"]
    q: Float[Array, "m+1"]


@partial(jax.jit, static_argnames=("mode", "max_iterations"))
def partial_sinkhorn(
    cost: Float[Array, "n m"],
    mass: float | Float[Array, ""],
    *,
    epsilon: float | Float[Array, ""],
    a: Float[Array, " n"] | None = None,
    b: Float[Array, " m"] | None = None,
    mask: Bool[Array, "n m"] | None = None,
    mode: Literal["converged", "l2rm"] = "converged",
    threshold: float | None = None,
    max_iterations: int | None = None,
) -> PartialSinkhornResult:
    """Moves ``mass`` from ``a`` to ``b`` at the least entropic cost, avoiding masked entries.

    Mode ``"converged"`` forbids the corner (``A`` infinite), so exactly ``mass`` moves, and runs
    ott-jax's Sinkhorn until the L1 error of the marginals is below ``threshold``. It starts from
    the solution for a vanishing mass and over-relaxes adaptively.

    Mode ``"l2rm"`` repeats the authors' code: ``A = max(cost)``, through which some mass leaks, so
    more than ``mass`` moves; it stops when the row potentials, dummy included, change by less than
    ``threshold`` (Euclidean norm, in units of the cost), typically before convergence.

    jit, vmap and float32 are safe; nothing is raised for values: read ``.converged``.

    Args:
        cost: transport cost, finite where the mask allows; at least float32 is computed in.
        mass: mass to move, in [0, min(|a|, |b|)]; outside it the nearest possible mass is moved
            and ``converged`` is False.
        epsilon: strength of the entropy, > 0, in units of the cost.
        a: weights of the rows, >= 0; 1 / n by default.
        b: weights of the columns, >= 0; 1 / m by default. ``|a|`` and ``|b|`` may differ.
        mask: True where transport is allowed; everything by default. A row or a column with no
            allowed entry stays where it is.
        mode: ``"converged"`` or ``"l2rm"``.
        threshold: of the stopping rule; 1e-5 (converged) or 1e-3 (l2rm) by default.
        max_iterations: 2000 (converged) or 1000 (l2rm) by default.

    Returns:
        The plan and how it was reached, see `PartialSinkhornResult`.

    Raises:
        ValueError: for shapes that do not fit together, or an unknown mode.

    Differentiation:
        Mode ``"converged"`` differentiates the plan implicitly (reverse mode) with respect to
        ``cost``, ``a``, ``b`` and ``mass``; the gradient is right only when converged, and
        ``epsilon`` counts as a constant. Mode ``"l2rm"`` has a zero gradient, as in the authors'
        code, where the plan is a target.
    """
    _check(cost, a, b, mask, mode)
    dtype = jnp.promote_types(jnp.result_type(cost), jnp.float32)
    cost = jnp.asarray(cost, dtype)
    n, m = cost.shape
    a = jnp.full((n,), 1 / n, dtype) if a is None else jnp.asarray(a, dtype)
    b = jnp.full((m,), 1 / m, dtype) if b is None else jnp.asarray(b, dtype)
    mask = jnp.ones((n, m), bool) if mask is None else jnp.asarray(mask, bool)
    epsilon = jax.lax.stop_gradient(jnp.asarray(epsilon, dtype))
    threshold = _STOP[mode][0] if threshold is None else threshold
    max_iterations = _STOP[mode][1] if max_iterations is None else max_iterations

    asked = jnp.asarray(mass, dtype)
    limit = jnp.minimum(a.sum(), b.sum())
    mass = jnp.clip(asked, 0.0, limit)
    # A sum of weights is rounded: asking for all of it must not count as asking for more.
    possible = (asked >= 0.0) & (asked <= limit * (1.0 + 1e-5))

    solve = _solve_converged if mode == "converged" else _solve_as_authors
    plan, iterations, converged = solve(cost, mass, epsilon, a, b, mask, threshold, max_iterations)
    plan = jnp.where(mask & (a > 0)[:, None] & (b > 0)[None, :], plan, 0.0)
    paid = jnp.sum(plan * jnp.where(mask, cost, 0.0))
    # ott-jax calls a diverged run converged; only NaN in the input comes this far.
    converged = converged & possible & jnp.isfinite(plan).all()
    return PartialSinkhornResult(plan, iterations, converged, plan.sum(), paid)


def _check(cost, a, b, mask, mode) -> None:
    if jnp.ndim(cost) != 2 or 0 in jnp.shape(cost):
        raise ValueError(f"cost must be a non-empty matrix, found shape {jnp.shape(cost)}")
    n, m = jnp.shape(cost)
    for name, array, shape in (("a", a, (n,)), ("b", b, (m,)), ("mask", mask, (n, m))):
        if array is not None and jnp.shape(array) != shape:
            raise ValueError(f"{name} must have shape {shape}, found {jnp.shape(array)}")
    if mode not in _STOP:
        raise ValueError(f"mode must be one of {', '.join(_STOP)}, found {mode!r}")


def _extend(cost, mass, a, b, mask, corner) -> _Extended:
    """Adds the dummies: what is not moved of ``b`` leaves the dummy row, and so for ``a``."""
    extended = jnp.pad(jnp.where(mask, cost, jnp.inf), ((0, 1), (0, 1)))
    extended = extended.at[-1, -1].set(corner)
    p = jnp.maximum(jnp.append(a, b.sum() - mass), _NO_WEIGHT)
    q = jnp.maximum(jnp.append(b, a.sum() - mass), _NO_WEIGHT)
    return _Extended(extended, p, q)


def _initial_potentials(problem: _Extended, mass, epsilon):
    """Potentials that are exact when little mass moves.

    Rows and columns then hardly feel each other: the plan is ``a_i b_j exp(-C_ij / epsilon)``
    scaled to the mass, and the dummies take the rest in proportion. From zero potentials the
    dummies, whose cost is 0, must first be priced out of competition, slowly.
    """
    f, g = epsilon * jnp.log(problem.p[:-1]), epsilon * jnp.log(problem.q[:-1])
    log_total = logsumexp((f[:, None] + g[None, :] - problem.cost[:-1, :-1]) / epsilon)
    log_total = jnp.where(jnp.isfinite(log_total), log_total, 0.0)  # nothing is allowed
    shift = epsilon * (jnp.log(mass) - log_total) / 2
    f, g = f + shift, g + shift
    f_dummy = epsilon * (jnp.log(problem.p[-1]) - logsumexp(g / epsilon))
    g_dummy = epsilon * (jnp.log(problem.q[-1]) - logsumexp(f / epsilon))
    return jnp.append(f, f_dummy), jnp.append(g, g_dummy)


def _solve_converged(cost, mass, epsilon, a, b, mask, threshold, max_iterations):
    problem = _extend(cost, mass, a, b, mask, corner=jnp.inf)
    smallest = _SMALLEST_MASS * jnp.minimum(a.sum(), b.sum())
    start = _initial_potentials(problem, jnp.maximum(mass, smallest), epsilon)
    solution = _sinkhorn(problem, start, epsilon, threshold, max_iterations)
    plan = solution.plan[:-1, :-1]
    # Converged means that the mass is right up to the threshold; remove that last bit.
    exact = plan * (mass / jnp.maximum(plan.sum(), _NO_WEIGHT))
    plan = jnp.where(solution.converged, exact, plan)
    return plan, solution.iterations, solution.converged


class _Solution(NamedTuple):
    plan: Float[Array, "n+1 m+1"]
    iterations: Int[Array, ""]
    converged: Bool[Array, ""]


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _sinkhorn(problem: _Extended, start, epsilon, threshold, max_iterations) -> _Solution:
    geometry = Geometry(problem.cost, epsilon=epsilon)
    linear_problem = LinearProblem(geometry, problem.p, problem.q)

    def run(momentum, potentials):
        solver = Sinkhorn(threshold=threshold, max_iterations=max_iterations, momentum=momentum)
        output = solver(linear_problem, init=potentials)
        return output.potentials, output.n_iters, output.converged

    # Far from the solution over-relaxation may overshoot out of float32's range. That is rare
    # (epsilon of 1e-3 with uneven weights): then run again without it.
    relaxed = run(_MOMENTUM, start)
    finite = jnp.isfinite(geometry.transport_from_potentials(*relaxed[0])).all()
    # Under vmap both branches run for all: the second one stops at once where the first converged.
    restart = jax.tree.map(lambda new, old: jnp.where(finite, new, old), relaxed[0], start)
    (f, g), iterations, converged = jax.lax.cond(
        finite, lambda: relaxed, lambda: run(None, restart)
    )
    plan = geometry.transport_from_potentials(f, g)
    # Over-relaxation leaves the rows as far from their weights as the columns: end on the rows.
    plan = plan * (problem.p / jnp.maximum(plan.sum(1), _NO_WEIGHT))[:, None]
    return _Solution(plan, iterations, converged)


def _sinkhorn_forward(problem, start, epsilon, threshold, max_iterations):
    solution = _sinkhorn(problem, start, epsilon, threshold, max_iterations)
    return solution, (solution.plan, start, epsilon, threshold)


def _sinkhorn_backward(max_iterations, residuals, cotangent):
    """Implicit differentiation of ``plan = exp((f + g - cost) / epsilon)`` under its marginals.

    ott-jax has it too, but is wrong or NaN where a dummy or an item has no weight (seen in
    0.6.0). Here the symmetric linear system, singular along f + c, g - c, is solved directly.
    """
    plan, start, epsilon, threshold = residuals
    weighted = cotangent.plan * plan
    rows, columns = (jnp.maximum(plan.sum(axis), _NO_WEIGHT) for axis in (1, 0))
    # Eliminate the rows, scale the columns to a unit diagonal and lift the null direction.
    scaled = plan / jnp.sqrt(rows)[:, None] / jnp.sqrt(columns)[None, :]
    null = jnp.sqrt(columns / columns.sum())
    system = jnp.eye(len(null), dtype=plan.dtype) - scaled.T @ scaled + jnp.outer(null, null)
    right = weighted.sum(0) - plan.T @ (weighted.sum(1) / rows)
    q_bar = jnp.linalg.solve(system, right / jnp.sqrt(columns)) / jnp.sqrt(columns)
    p_bar = (weighted.sum(1) - plan @ q_bar) / rows
    cost_bar = (plan * (p_bar[:, None] + q_bar[None, :]) - weighted) / epsilon
    constants = jax.tree.map(jnp.zeros_like, (start, epsilon, threshold))
    return _Extended(cost_bar, p_bar, q_bar), *constants


_sinkhorn.defvjp(_sinkhorn_forward, _sinkhorn_backward)


def _solve_as_authors(cost, mass, epsilon, a, b, mask, threshold, max_iterations):
    cost, mass, a, b = jax.lax.stop_gradient((cost, mass, a, b))
    corner = cost.max()  # masked entries included
    problem = _extend(cost, mass, a, b, mask, corner)
    geometry = Geometry(problem.cost, epsilon=epsilon)
    log_p, log_q = jnp.log(problem.p), jnp.log(problem.q)
    # The authors start from zero potentials with xi = 100 max(cost) in the dummies' cost.
    # Without xi, the same iterates come from dummy potentials that are lower by xi.
    u = jnp.zeros_like(log_p).at[-1].set(-100.0 * corner)
    v = jnp.zeros_like(log_q).at[-1].set(-100.0 * corner)

    def unfinished(state):
        _, _, iteration, change = state
        return (iteration < max_iterations) & (change >= threshold)

    def iterate(state):
        u, v, iteration, _ = state
        new_u = geometry.update_potential(u, v, log_p, axis=1)
        new_v = geometry.update_potential(new_u, v, log_q, axis=0)
        return new_u, new_v, iteration + 1, jnp.linalg.norm(new_u - u)

    start = (u, v, jnp.int32(0), jnp.asarray(jnp.inf, u.dtype))
    u, v, iterations, change = jax.lax.while_loop(unfinished, iterate, start)
    plan = geometry.transport_from_potentials(u, v)[:-1, :-1]
    return plan, iterations, change < threshold
