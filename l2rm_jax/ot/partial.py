"""The front door: masked, batched, differentiable partial transport of an exact mass.

README.md has the mathematics. References:
    Cuturi, Sinkhorn Distances: Lightspeed Computation of Optimal Transport, NeurIPS 2013.
    Benamou et al., Iterative Bregman Projections for Regularized Transportation Problems, SIAM J.
    Sci. Comput. 2015.
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from l2rm_jax.ot.authors import repeat_authors
from l2rm_jax.ot.batch import over_leading_axes
from l2rm_jax.ot.gradient import solve, with_gradient
from l2rm_jax.ot.iteration import Solution, iterate
from l2rm_jax.ot.problem import Problem, Scales, examine, reduce
from l2rm_jax.ot.result import (
    PartialSinkhornResult,
    Transport,
    logs,
    marginal_error,
    regularised_value,
    sums_of,
)
from l2rm_jax.ot.sums import sum_of, total

# (threshold, max_iterations) of each mode.
_STOP = {"converged": (1e-6, 2000), "fixed": (1e-6, 100), "l2rm": (1e-3, 1000)}
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
) -> PartialSinkhornResult:
    """Moves ``mass`` from ``a`` to ``b`` at the least entropic cost, avoiding masked entries.

    Leading axes are a batch and broadcast against each other. jit, vmap, pmap and float32 are safe,
    memory is that of a few plans, and nothing is raised for values: read ``.converged``, and
    ``.marginal_error`` and ``.mass_error`` for how far it is.

    Mode ``"converged"`` iterates, accelerated, until the marginals are within ``threshold``. In a
    batch each problem stops for itself and is frozen, and the batch takes as long as its slowest;
    a CPU solves large problems one after another instead.

    Mode ``"fixed"`` runs ``max_iterations`` plain iterations in the log domain, from ``start``.
    With all of the mass to move they are Sinkhorn's.

    Mode ``"l2rm"`` repeats the authors' code: the dummies may exchange ``A = max(cost)``, through
    which some mass leaks, so more than ``mass`` moves; it stops when the row potentials, dummy
    included, change by less than ``threshold`` (Euclidean norm, in units of the cost), typically
    before convergence. ``start`` does not apply.

    Args:
        cost: transport cost; infinite where it is forbidden, as by the mask. At least float32 is
            computed in.
        mass: mass to move, in [0, min(|a|, |b|)]; outside it (by more than the rounding of a sum),
            or beyond what the rows and columns with an allowed entry weigh, the nearest possible
            mass is moved and ``converged`` is False.
        epsilon: strength of the entropy, in units of the cost; nothing converges unless it is > 0.
        a: weights of the rows; 1 / n by default. Nothing converges unless all are >= 0.
        b: weights of the columns; 1 / m by default. ``|a|`` and ``|b|`` may differ.
        mask: True where transport is allowed; everything by default. A row or a column with no
            allowed entry stays where it is. A mask may forbid ``mass`` in subtler ways too: then
            nothing converges and ``marginal_error`` stays large.
        mode: ``"converged"``, ``"fixed"`` or ``"l2rm"``.
        threshold: L1 error of what rows and columns move, as a share of the mass, up to which a
            plan counts as converged, 1e-6 by default. (l2rm: see above; 1e-3.)
        max_iterations: at least 1; 2000 (converged), 100 (fixed) or 1000 (l2rm) by default. Mode
            ``"fixed"`` is compiled for its number, which cannot be traced.
        start: column potentials to start from, up to a constant: ``.g`` of a similar problem.
            ``epsilon log b`` by default, from which a vanishing mass is solved at once.

    Returns:
        The plan, its potentials, and how they were reached, see `PartialSinkhornResult`.

    Raises:
        ValueError: for shapes that do not fit together, an unknown mode, or a ``max_iterations``
            that is less than 1, or traced in mode ``"fixed"``.

    Differentiation:
        With respect to ``cost``, ``a``, ``b``, ``mass`` and ``epsilon``; potentials and errors are
        constants.

        ``plan``, ``cost``, ``mass`` in mode ``"converged"``: implicit, reverse mode; one dense
        system of size min(n, m) + 1, whatever the iterations. Exact at the optimum, hence as good
        as the convergence. In mode ``"fixed"``: through the iterations, forward or reverse; exact
        for the plan that they give, memory grows with their number. In mode ``"l2rm"`` the plan is
        constant, as in the authors' code, where it is a target; ``cost`` is linear in the costs.

        ``value``: by the envelope theorem, at no cost; exact at the optimum of the problem without
        a leak, hence in mode ``"l2rm"`` never. First order only: second derivatives are not there,
        but silently zero or partial. In mode ``"converged"`` reverse mode alone.

        At the ends of its range the derivative in ``mass`` is the one from within. Where all of a
        side moves, its weights cannot change alone: only directions that leave their sum mean
        anything. Gradients of items without weight are zero; those of items without partner too,
        but for ``value``, which counts the entropy of what they keep.
    """
    cost, mask = jnp.asarray(cost), None if mask is None else jnp.asarray(mask)
    _check(cost, mass, epsilon, a, b, mask, start, mode)
    dtype = jnp.promote_types(jnp.result_type(cost), jnp.float32)
    cost = jnp.asarray(cost, dtype)
    n, m = cost.shape[-2:]
    a = np.full((n,), 1 / n) if a is None else a
    b = np.full((m,), 1 / m) if b is None else b
    mask = np.ones((n, m), bool) if mask is None else mask
    threshold = _STOP[mode][0] if threshold is None else threshold
    max_iterations = _STOP[mode][1] if max_iterations is None else max_iterations
    _check_count(max_iterations, mode)
    # A loop of a fixed length, which reverse mode needs, is compiled for that length.
    static, dynamic = (max_iterations, None) if mode == "fixed" else (None, max_iterations)
    numbers = (jnp.asarray(x, dtype) for x in (cost, mass, epsilon, a, b))
    return _solve(mode, static, dynamic, threshold, *numbers, jnp.asarray(mask, bool), start)


@partial(jax.jit, static_argnames=("mode", "fixed_iterations"))
def _solve(
    mode, fixed_iterations, max_iterations, threshold, cost, mass, epsilon, a, b, mask, start
) -> PartialSinkhornResult:
    if start is None:
        start = epsilon[..., None] * jnp.log(jnp.maximum(b, _TINY))
    start = jnp.asarray(start, cost.dtype)
    # The compiler would work out, slowly, what a constant mask leaves of rows and columns.
    mask = lax.optimization_barrier(mask)
    one = _one_as_authors if mode == "l2rm" else _one
    one = partial(one, fixed_iterations, max_iterations, threshold)
    arrays = cost, mass, epsilon, a, b, mask, start
    return over_leading_axes(one, *arrays, ranks=(2, 0, 0, 1, 1, 2, 1))


def _check(cost, mass, epsilon, a, b, mask, start, mode) -> None:
    if jnp.ndim(cost) < 2 or 0 in jnp.shape(cost)[-2:]:
        raise ValueError(f"cost must hold non-empty matrices, found shape {jnp.shape(cost)}")
    n, m = jnp.shape(cost)[-2:]
    named = {
        "cost": (cost, (n, m)),
        "mass": (mass, ()),
        "epsilon": (epsilon, ()),
        "a": (a, (n,)),
        "b": (b, (m,)),
        "mask": (mask, (n, m)),
        "start": (start, (m,)),
    }
    batches = {}
    for name, (array, shape) in named.items():
        found = shape if array is None else jnp.shape(array)
        split = len(found) - len(shape)
        if split < 0 or found[split:] != shape:
            raise ValueError(f"{name} must have shape {shape} after any batch, found {found}")
        batches[name] = found[:split]
    try:
        jnp.broadcast_shapes(*batches.values())
    except ValueError:
        found = ", ".join(f"{name} {batch}" for name, batch in batches.items() if batch)
        raise ValueError(f"leading axes must broadcast against each other, found {found}") from None
    if mode not in _STOP:
        raise ValueError(f"mode must be one of {', '.join(_STOP)}, found {mode!r}")


def _check_count(max_iterations, mode) -> None:
    if isinstance(max_iterations, jax.core.Tracer):
        if mode == "fixed":
            raise ValueError("max_iterations cannot be traced in mode 'fixed', found a tracer")
    elif max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, found {max_iterations}")


def _one(
    fixed_iterations, max_iterations, threshold, cost, mass, epsilon, a, b, mask, start
) -> PartialSinkhornResult:
    request = examine(cost, mass, epsilon, a, b, mask)
    problem, scales = reduce(request, epsilon)
    # Only differences matter, and a large constant would cost the potentials their digits.
    highest = jnp.where(request.b > 0, start, -jnp.inf).max()
    start = (start - jnp.where(jnp.isfinite(highest), highest, 0.0)) / epsilon
    exact = 1.0
    if fixed_iterations is not None:
        solution = iterate(problem, start, fixed_iterations)
    else:
        solution = solve(problem, start, threshold, max_iterations)
    converged = (solution.error <= threshold) & request.possible
    if fixed_iterations is None:
        # Then the mass is right up to the threshold; remove that last bit.
        moved, one = sum_of(solution.columns_moved), jnp.ones_like(solution.plan)
        moved = with_gradient(moved, (one,), (solution.plan,))  # that of the plan's sum
        exact = jnp.where(converged, problem.mass / jnp.maximum(moved, _TINY), 1.0)
    transport = _in_units(solution, exact, problem, scales, epsilon, a, b)
    return _result(transport, solution.iterations, converged, cost, mass, request, epsilon, a, b)


def _in_units(
    solution: Solution, exact, problem: Problem, scales: Scales, epsilon, a, b
) -> Transport:
    """Back from the reduced problem: items that it left out keep all their weight."""
    share = scales.mass / jnp.maximum(problem.mass, _TINY)
    unit = scales.weight * share

    def log_kept(side, potential, dummy, weights):
        alone = jnp.where(weights > 0, jnp.log(jnp.where(weights > 0, weights, 1.0)), 0.0)
        return jnp.where(side.weights > 0, potential + dummy + jnp.log(scales.weight), alone)

    f, g, f_dummy, g_dummy = solution.potentials
    f, g = log_kept(problem.rows, f, g_dummy, a), log_kept(problem.columns, g, f_dummy, b)
    log_mass = jnp.log(jnp.maximum(share, _TINY)) - jnp.log(scales.weight)
    price = log_mass - f_dummy - g_dummy
    plan = (unit * exact) * solution.plan
    finite = jnp.where(solution.plan > 0, problem.cost, 0.0)  # it is not where nothing may move
    sums, scaled_cost = sums_of(plan), total(plan * finite)
    cost = scales.cost * sums.total + epsilon * scaled_cost
    moved = unit * solution.rows_moved, unit * solution.columns_moved
    potentials = lax.stop_gradient((epsilon * f, epsilon * g, scales.cost + epsilon * price))
    return Transport(plan, sums, cost, logs(sums, f, g, price, scaled_cost), *moved, *potentials)


def _one_as_authors(_, max_iterations, threshold, cost, mass, epsilon, a, b, mask, start):
    request = examine(cost, mass, epsilon, a, b, mask)
    constants = lax.stop_gradient((cost, request.mass, epsilon, a, b))
    allowed = request.cost != jnp.inf
    solution = repeat_authors(*constants, allowed, threshold, max_iterations)
    plan = jnp.where(allowed, solution.plan, 0.0)
    f, g, f_dummy, g_dummy = solution.potentials
    f, g = (jnp.where(w > 0, x, 0.0) for w, x in ((a, f + g_dummy), (b, g + f_dummy)))
    price, unit = -(f_dummy + g_dummy), lax.stop_gradient(epsilon)
    sums, moved_cost = sums_of(plan), total(plan * jnp.where(allowed, cost, 0.0))
    moved = solution.rows_moved, solution.columns_moved
    potentials = unit * f, unit * g, unit * price
    plan_logs = logs(sums, f, g, price, moved_cost / unit)
    transport = Transport(plan, sums, moved_cost, plan_logs, *moved, *potentials)
    converged = (solution.error < threshold) & request.possible
    return _result(transport, solution.iterations, converged, cost, mass, request, epsilon, a, b)


def _result(transport, iterations, converged, cost, mass, request, epsilon, a, b):
    moved = transport.sums.total
    unit = jnp.maximum(jnp.maximum(moved, jnp.abs(mass)), jnp.finfo(cost.dtype).tiny)
    return PartialSinkhornResult(
        plan=transport.plan,
        f=transport.f,
        g=transport.g,
        price=transport.price,
        cost=transport.cost,
        value=regularised_value(transport, cost, request.mass, epsilon, a, b),
        mass=moved,
        iterations=iterations,
        converged=converged & jnp.isfinite(moved),
        marginal_error=lax.stop_gradient(marginal_error(transport) / unit),
        mass_error=lax.stop_gradient(jnp.abs(moved - mass) / unit),
    )
