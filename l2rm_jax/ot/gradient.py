r"""Differentiates a converged plan through its optimality conditions.

With the potentials over epsilon, the extended plan is :math:`\hat\pi = e^{f + g - \hat C}`, so its
row sums :math:`p` and column sums :math:`q` change by

.. math::

    \begin{bmatrix} D_p & \hat\pi \\ \hat\pi^\top & D_q \end{bmatrix}
    \begin{bmatrix} df \\ dg \end{bmatrix} =
    \begin{bmatrix} dp + (\hat\pi \circ d\hat C) 1 \\ dq + (\hat\pi \circ d\hat C)^\top 1
    \end{bmatrix},

a symmetric system, singular along the gauge :math:`(1, -1)` alone. Its longer half is eliminated.
"""

import jax
import jax.numpy as jnp
from jax import lax

from l2rm_jax.ot.iteration import Solution, converge
from l2rm_jax.ot.problem import Problem

# Stands for a weight of zero: with it the row of the system means nothing instead of infinity.
_NO_WEIGHT = 1e-20


@jax.custom_vjp
def solve(problem: Problem, start, threshold, max_iterations) -> Solution:
    """`converge` with the implicit gradient of the plan; everything else counts as constant.

    Reverse mode only. Takes one dense linear system of the size of the shorter side, in time and
    memory, and nothing of the iterations.
    """
    return converge(problem, start, threshold, max_iterations)


def _forward(problem, start, threshold, max_iterations):
    solution = converge(problem, start, threshold, max_iterations)
    left = solution.rows_left, solution.columns_left
    return solution, (problem, solution.plan, *left)


def _backward(residuals, cotangent):
    problem, plan, *left = residuals
    rows_left, columns_left = (jnp.maximum(part, 0.0) for part in left)
    weighted = cotangent.plan * plan
    corner = jnp.zeros((1, 1), plan.dtype)
    extended = jnp.block([[plan, rows_left[:, None]], [columns_left[None, :], corner]])
    right = jnp.append(weighted.sum(1), 0.0), jnp.append(weighted.sum(0), 0.0)
    if plan.shape[0] >= plan.shape[1]:
        p_bar, q_bar = _solve(extended, *right)
    else:
        q_bar, p_bar = _solve(extended.T, *right[::-1])
    cost_bar = plan * (p_bar[:-1, None] + q_bar[None, :-1]) - weighted
    # The dummy row's weight is what stays of the columns, |b| - mass, and the other way round.
    zero = jax.tree.map(jnp.zeros_like, problem)
    cotangents = Problem(
        cost_bar,
        zero.rows._replace(weights=p_bar[:-1], left=q_bar[-1]),
        zero.columns._replace(weights=q_bar[:-1], left=p_bar[-1]),
        zero.mass,
    )
    return cotangents, None, None, None


solve.defvjp(_forward, _backward)


def _solve(plan, rows_right, columns_right):
    """Solves the system above for right-hand sides that sum to the same."""
    rows, columns = (jnp.maximum(plan.sum(axis), _NO_WEIGHT) for axis in (1, 0))
    # Scaled to a unit diagonal; the null direction is lifted, which leaves the solution alone.
    scaled = plan / jnp.sqrt(rows)[:, None] / jnp.sqrt(columns)[None, :]
    null = jnp.sqrt(columns / columns.sum())
    product = jnp.matmul(scaled.T, scaled, precision=lax.Precision.HIGHEST)
    system = jnp.eye(len(null), dtype=plan.dtype) - product + jnp.outer(null, null)
    right = columns_right - _product(plan.T, rows_right / rows)
    columns_solution = jnp.linalg.solve(system, right / jnp.sqrt(columns)) / jnp.sqrt(columns)
    return (rows_right - _product(plan, columns_solution)) / rows, columns_solution


def _product(matrix, vector):
    return jnp.matmul(matrix, vector, precision=lax.Precision.HIGHEST)
