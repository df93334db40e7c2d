"""Masked, batched, differentiable partial transport of an exact mass: the public function.

README.md explains the mathematics.

References:
    Cuturi, Sinkhorn Distances: Lightspeed Computation of Optimal Transport, NeurIPS 2013.
    Benamou et al., Iterative Bregman Projections for Regularized Transportation Problems, SIAM J.
    Sci. Comput. 2015.
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
"""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from l2rm_jax.ot.authors import authors_sinkhorn
from l2rm_jax.ot.batch import map_leading_axes
from l2rm_jax.ot.gradient import converge_with_gradient, with_gradient
from l2rm_jax.ot.log_domain import Solution, iterate
from l2rm_jax.ot.problem import Problem, Scales, feasible_part, normalise
from l2rm_jax.ot.result import (
    PartialSinkhornResult,
    Transport,
    marginal_error,
    plan_log_plan,
    plan_sums,
    regularised_value,
)
from l2rm_jax.ot.rounding import round_transport
from l2rm_jax.ot.sums import matrix_total, vector_total

# Default (threshold, max_iterations) of each mode.
_STOPPING_RULES = {"converged": (1e-6, 2000), "fixed": (1e-6, 100), "l2rm": (1e-3, 1000)}
_TINY = 1e-30


def partial_sinkhorn(
    cost: Float[Array, "... n m"],
    mass: float | Float[Array, "..."],
    *,
    epsilon: float | Float[Array, "..."],
    a: Float[Array, "... n"] | None = None,
    b: Float[Array, "... m"] | None = None,
    mask: Bool[Array, "... n m"] | None = None,
    mode: Literal["converged", "fixed", "l2rm"] = "converged",
    threshold: float | None = None,
    max_iterations: int | None = None,
    start: Float[Array, "... m"] | None = None,
    round: bool = False,
) -> PartialSinkhornResult:
    """Move ``mass`` from rows ``a`` to columns ``b`` at the least entropic cost.

    Leading axes are a batch and broadcast against each other. The function works under jit, vmap
    and pmap and in float32, with the memory of a few plans. Values never raise an error: check
    ``.converged``, and ``.marginal_error`` and ``.mass_error`` for the errors of the plan.

    Mode ``"converged"`` runs accelerated iterations until the marginals are within ``threshold``.
    In a batch each problem stops independently, and the batch takes as long as its slowest
    problem. A CPU solves large problems one after another instead.

    Mode ``"fixed"`` runs ``max_iterations`` plain iterations in the log domain, from ``start``. If
    all of the mass moves, they are Sinkhorn's.

    Mode ``"l2rm"`` follows the authors' code. Its dummies may exchange mass at cost
    ``A = max(cost)``, so mass leaks and more than ``mass`` moves. It stops when the row potentials,
    dummy included, change by less than ``threshold`` (Euclidean norm, in units of the cost),
    typically before convergence. It ignores ``start``.

    Args:
        cost: transport cost; infinite for a forbidden pair, like the mask. Lower precisions are
            computed in float32.
        mass: mass to move, in [0, min(|a|, |b|)]. Outside that range (by more than the rounding of
            a sum), or beyond the weight of the rows and columns with an allowed pair, the nearest
            possible mass is moved and ``converged`` is False.
        epsilon: strength of the entropy, > 0, in units of the cost; else nothing converges.
        a: weights of the rows, >= 0, else nothing converges; 1 / n by default.
        b: weights of the columns, >= 0; 1 / m by default. ``|a|`` and ``|b|`` may differ.
        mask: True where transport is allowed; everything by default. A row or a column without an
            allowed pair keeps its weight. A mask may also make ``mass`` impossible in ways that are
            not checked: then nothing converges and ``marginal_error`` stays large.
        mode: ``"converged"``, ``"fixed"`` or ``"l2rm"``.
        threshold: L1 error of the weights that rows and columns move, as a share of the mass, at
            which a plan counts as converged; 1e-6 by default. For mode ``"l2rm"`` see above; 1e-3.
        max_iterations: at least 1; 2000 (converged), 100 (fixed) or 1000 (l2rm) by default. Mode
            ``"fixed"`` is compiled for this number, so it cannot be traced there.
        start: column potentials to start from, such as ``.g`` of a similar problem; a constant
            added to all of them changes nothing. By default ``epsilon log b``, from which the
            problem of a vanishing mass is solved at once.
        round: make the plan exactly feasible: no row above ``a``, no column above ``b``, and
            ``mass`` in total, all up to the rounding of the dtype (1e-7 of the mass in float32).
            ``plan``, ``cost``, ``mass`` and the two errors then describe the rounded plan;
            ``marginal_error`` is the weight above ``a`` or ``b``. If a mask makes the mass
            impossible, less moves and ``mass_error`` is the missing share.

    Returns:
        The plan, its potentials and diagnostics, see `PartialSinkhornResult`.

    Raises:
        ValueError: if shapes do not fit together, the mode is unknown, or ``max_iterations`` is
            less than 1, or is traced in mode ``"fixed"``.

    Differentiation:
        Results are differentiable with respect to ``cost``, ``a``, ``b``, ``mass`` and ``epsilon``,
        except for potentials and errors, which are constants.

        ``plan``, ``cost`` and ``mass``: in mode ``"converged"`` the gradient is implicit and in
        reverse mode only. It takes one dense system of size min(n, m) + 1, whatever the number of
        iterations, and is exact at the optimum, hence as good as the convergence. In mode
        ``"fixed"`` it goes through the iterations, forward or reverse. It is exact for the plan
        that they give, and its memory grows with their number. In mode ``"l2rm"`` the plan is
        constant, as in the authors' code, where it is a target; ``cost`` is linear in the costs.
        With ``round``, the rounding counts as a constant shift: the gradients belong to the plan
        before rounding. They are exact for that plan but not for the rounded plan.

        ``value``: by the envelope theorem, at no cost. This is exact at the optimum of the problem
        without a leak, hence never in mode ``"l2rm"``. It is of first order only: second
        derivatives are silently zero or incomplete. In mode ``"converged"``, reverse mode only.

        At the ends of its range, the derivative in ``mass`` is the one-sided one, from inside. If
        all of a side moves, its weights cannot change independently: only directions that keep
        their sum have a meaning. Gradients are zero for items without weight, and for items
        without an allowed pair, except for ``value``, which includes the entropy of their weight.
    """
    cost, mask = jnp.asarray(cost), None if mask is None else jnp.asarray(mask)
    _check(cost, mass, epsilon, a, b, mask, start, mode)
    dtype = jnp.float64 if jnp.result_type(cost) == jnp.float64 else jnp.float32
    cost = jnp.asarray(cost, dtype)
    n, m = cost.shape[-2:]
    a = np.full((n,), 1 / n) if a is None else a
    b = np.full((m,), 1 / m) if b is None else b
    mask = np.ones((n, m), bool) if mask is None else mask
    threshold = _STOPPING_RULES[mode][0] if threshold is None else threshold
    max_iterations = _STOPPING_RULES[mode][1] if max_iterations is None else max_iterations
    _check_count(max_iterations, mode)
    # Reverse mode needs a loop of a fixed length, and that is compiled for its length.
    static, dynamic = (max_iterations, None) if mode == "fixed" else (None, max_iterations)
    numbers = (jnp.asarray(x, dtype) for x in (cost, mass, epsilon, a, b))
    static = _Static(mode, round, static)
    return _solve(static, dynamic, threshold, *numbers, jnp.asarray(mask, bool), start)


class _Static(NamedTuple):
    """Settings that a program is compiled for."""

    mode: str
    rounds: bool
    iterations: int | None  # of mode "fixed"


@partial(jax.jit, static_argnames="static")
def _solve(
    static, max_iterations, threshold, cost, mass, epsilon, a, b, mask, start
) -> PartialSinkhornResult:
    if start is None:
        scale, logs = epsilon[..., None], jnp.log(jnp.maximum(b, _TINY))
        rank = max(scale.ndim, logs.ndim)
        start = lax.broadcast_to_rank(scale, rank) * lax.broadcast_to_rank(logs, rank)
    start = jnp.asarray(start, cost.dtype)
    # The barrier stops the compiler from folding everything that follows from a constant mask,
    # which is slow.
    mask = lax.optimization_barrier(mask)
    solve_one = _solve_one_as_authors if static.mode == "l2rm" else _solve_one
    solve_one = partial(solve_one, static, max_iterations, threshold)
    arrays = cost, mass, epsilon, a, b, mask, start
    return map_leading_axes(solve_one, *arrays, ranks=(2, 0, 0, 1, 1, 2, 1))


def _check(cost, mass, epsilon, a, b, mask, start, mode) -> None:
    if jnp.ndim(cost) < 2 or 0 in jnp.shape(cost)[-2:]:
        raise ValueError(f"cost: found shape {jnp.shape(cost)}, expected non-empty matrices")
    n, m = jnp.shape(cost)[-2:]
    expected = {
        "cost": (cost, (n, m)),
        "mass": (mass, ()),
        "epsilon": (epsilon, ()),
        "a": (a, (n,)),
        "b": (b, (m,)),
        "mask": (mask, (n, m)),
        "start": (start, (m,)),
    }
    batches = {}
    for name, (array, shape) in expected.items():
        full_shape = shape if array is None else jnp.shape(array)
        split = len(full_shape) - len(shape)
        if split < 0 or full_shape[split:] != shape:
            raise ValueError(
                f"{name}: found shape {full_shape}, expected {shape} after the leading axes"
            )
        batches[name] = full_shape[:split]
    try:
        jnp.broadcast_shapes(*batches.values())
    except ValueError:
        listed = ", ".join(f"{name} {batch}" for name, batch in batches.items() if batch)
        raise ValueError(
            f"leading axes: found {listed}, expected shapes that broadcast against each other"
        ) from None
    if mode not in _STOPPING_RULES:
        raise ValueError(f"mode: found {mode!r}, expected one of {', '.join(_STOPPING_RULES)}")


def _check_count(max_iterations, mode) -> None:
    if isinstance(max_iterations, jax.core.Tracer):
        if mode == "fixed":
            raise ValueError("max_iterations: found a tracer, expected an int in mode 'fixed'")
    elif max_iterations < 1:
        raise ValueError(f"max_iterations: found {max_iterations}, expected at least 1")


def _solve_one(
    static, max_iterations, threshold, cost, mass, epsilon, a, b, mask, start
) -> PartialSinkhornResult:
    part = feasible_part(cost, mass, epsilon, a, b, mask)
    problem, scales = normalise(part, epsilon)
    # Only differences of potentials matter; a large constant would cost them their digits.
    highest = jnp.where(part.b > 0, start, -jnp.inf).max()
    start = (start - jnp.where(jnp.isfinite(highest), highest, 0.0)) / epsilon
    exact = 1.0
    if static.iterations is not None:
        solution = iterate(problem, start, static.iterations)
    else:
        solution = converge_with_gradient(problem, start, threshold, max_iterations)
    converged = (solution.error <= threshold) & part.is_feasible
    if static.iterations is None:
        # The mass is right up to the threshold; scale the plan to make it exact. The moved mass
        # has the gradient of the plan's sum.
        moved, ones = vector_total(solution.columns_moved), jnp.ones_like(solution.plan)
        moved = with_gradient(moved, (ones,), (solution.plan,))
        exact = jnp.where(converged, problem.mass / jnp.maximum(moved, _TINY), 1.0)
    transport = _to_caller_units(solution, exact, problem, scales, epsilon, a, b)
    return _result(
        static.rounds, transport, solution.iterations, converged, cost, mass, part, epsilon, a, b
    )


def _to_caller_units(
    solution: Solution, exact, problem: Problem, scales: Scales, epsilon, a, b
) -> Transport:
    """Convert a solution to the caller's units; items that cannot move keep all their weight."""
    share = scales.mass / jnp.maximum(problem.mass, _TINY)
    unit = scales.weight * share

    def log_kept_weight(side, potential, dummy, weights):
        log_weight = jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1.0)), 0.0)
        return jnp.where(side.weights > 0, potential + dummy + jnp.log(scales.weight), log_weight)

    f, g, f_dummy, g_dummy = solution.potentials
    f = log_kept_weight(problem.rows, f, g_dummy, a)
    g = log_kept_weight(problem.columns, g, f_dummy, b)
    log_mass = jnp.log(jnp.maximum(share, _TINY)) - jnp.log(scales.weight)
    price = log_mass - f_dummy - g_dummy
    plan = (unit * exact) * solution.plan
    finite = jnp.where(solution.plan > 0, problem.cost, 0.0)  # a forbidden cost is infinite
    sums, scaled_cost = plan_sums(plan), matrix_total(plan * finite)
    cost = scales.cost * sums.total + epsilon * scaled_cost
    moved = unit * solution.rows_moved, unit * solution.columns_moved
    potentials = lax.stop_gradient((epsilon * f, epsilon * g, scales.cost + epsilon * price))
    log_term = plan_log_plan(sums, f, g, price, scaled_cost)
    return Transport(plan, sums, cost, log_term, *moved, *potentials)


def _solve_one_as_authors(
    static, max_iterations, threshold, cost, mass, epsilon, a, b, mask, start
) -> PartialSinkhornResult:
    part = feasible_part(cost, mass, epsilon, a, b, mask)
    constants = lax.stop_gradient((cost, part.mass, epsilon, a, b))
    allowed = part.cost != jnp.inf
    solution = authors_sinkhorn(*constants, allowed, threshold, max_iterations)
    plan = jnp.where(allowed, solution.plan, 0.0)
    f, g, f_dummy, g_dummy = solution.potentials
    f, g = (jnp.where(w > 0, x, 0.0) for w, x in ((a, f + g_dummy), (b, g + f_dummy)))
    price, unit = -(f_dummy + g_dummy), lax.stop_gradient(epsilon)
    sums, moved_cost = plan_sums(plan), matrix_total(plan * jnp.where(allowed, cost, 0.0))
    moved = solution.rows_moved, solution.columns_moved
    potentials = unit * f, unit * g, unit * price
    log_term = plan_log_plan(sums, f, g, price, moved_cost / unit)
    transport = Transport(plan, sums, moved_cost, log_term, *moved, *potentials)
    converged = (solution.error < threshold) & part.is_feasible
    return _result(
        static.rounds, transport, solution.iterations, converged, cost, mass, part, epsilon, a, b
    )


def _result(rounds, transport, iterations, converged, cost, mass, part, epsilon, a, b):
    value = regularised_value(transport, cost, part.mass, epsilon, a, b)
    off = marginal_error(transport)
    if rounds:
        transport, off = round_transport(transport, part, cost)
    moved = transport.sums.total
    unit = jnp.maximum(jnp.maximum(moved, jnp.abs(mass)), jnp.finfo(cost.dtype).tiny)
    return PartialSinkhornResult(
        plan=transport.plan,
        f=transport.f,
        g=transport.g,
        price=transport.price,
        cost=transport.cost,
        value=value,
        mass=moved,
        iterations=iterations,
        converged=converged & jnp.isfinite(moved),
        marginal_error=lax.stop_gradient(off / unit),
        mass_error=lax.stop_gradient(jnp.abs(moved - mass) / unit),
    )
