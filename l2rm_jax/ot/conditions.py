r"""The optimality conditions of a plan, to first order: a linear system.

With the potentials over epsilon, the plan is :math:`P = e^{f + g + \lambda - C}`, rows keep
:math:`r = e^f`, columns :math:`c = e^g`. So weights and mass change with them by

.. math::

    \begin{bmatrix} D_a & P & P 1 \\ P^\top & D_b & P^\top 1 \\ 1^\top P^\top & 1^\top P & s
    \end{bmatrix} \begin{bmatrix} df \\ dg \\ d\lambda \end{bmatrix} =
    \begin{bmatrix} da + (P \circ dC) 1 \\ db + (P \circ dC)^\top 1 \\ ds + \langle P, dC \rangle
    \end{bmatrix},

a symmetric system. It becomes singular where all of a side moves or nothing does, but without the
longer side, which is eliminated, it is the Laplacian of a graph, and those keep their digits if no
difference of large numbers is taken: the nodes are the shorter side's items and the mass, all but
what they keep flows between them, and that is as if it went through one more node.

The implicit gradient solves it, as it is symmetric, for cotangents; a Newton step with `dC = 0`
and, for `da`, what rows are still to move.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def solve(
    plan: Float[Array, "n m"],
    rows_left: Float[Array, " n"],
    columns_left: Float[Array, " m"],
    rows_right: Float[Array, " n"],
    columns_right: Float[Array, " m"],
) -> tuple[Float[Array, " n"], Float[Array, " m"], Float[Array, ""]]:
    r"""Solves the system; for the mass, the right-hand side is the sum of either one given.

    Args:
        plan: what moves.
        rows_left: what the rows keep.
        columns_left: what the columns keep.
        rows_right: right-hand side of the rows' equations.
        columns_right: of the columns', with the same sum.

    Returns:
        :math:`df`, :math:`dg` and :math:`d\lambda`. Takes time :math:`O(n m \min(n, m))`.
    """
    if plan.shape[0] >= plan.shape[1]:
        return _solve(plan, rows_left, columns_left, rows_right, columns_right)
    columns, rows, mass = _solve(plan.T, columns_left, rows_left, columns_right, rows_right)
    return rows, columns, mass


def _solve(plan, rows_left, columns_left, rows_right, columns_right):
    # Stands for a weight of zero: the row of the system then means nothing instead of infinity.
    tiny = jnp.finfo(plan.dtype).tiny
    rows = jnp.maximum(plan.sum(1) + rows_left, tiny)
    columns = jnp.maximum(plan.sum(0) + columns_left, tiny)
    shares = plan / rows[:, None]
    # Between columns: through the rows, and through what stays; to the mass: what rows keep.
    kept = columns_left / jnp.maximum(columns_left.sum(), tiny)
    through = _product(plan.T, shares) + columns_left[:, None] * kept[None, :]
    to_mass = _product(rows_left, shares)
    links = jnp.pad(jnp.fill_diagonal(through, 0.0, inplace=False), (0, 1))
    links = links.at[-1, :-1].set(to_mass).at[:-1, -1].set(to_mass)
    # Scaled to a unit diagonal; the null direction is lifted, which leaves the solution alone.
    scale = jnp.sqrt(jnp.maximum(links.sum(0), tiny))
    null = scale / jnp.linalg.norm(scale)
    system = jnp.eye(len(scale), dtype=plan.dtype) - links / scale[:, None] / scale[None, :]
    right = columns_right - _product(rows_right, shares)
    right = jnp.append(right, -jnp.sum(rows_left / rows * rows_right))
    nodes = jnp.linalg.solve(system + jnp.outer(null, null), right / scale) / scale
    both = nodes[:-1] - nodes[-1]  # the columns' solution and the mass's
    rows_solution = (rows_right - _product(plan, both)) / rows
    mass_solution = jnp.sum(kept * both)
    with_mass = _product(rows_solution + mass_solution, plan)
    return rows_solution, (columns_right - with_mass) / columns, mass_solution


def _product(left, right):
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)
