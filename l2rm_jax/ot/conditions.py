r"""The optimality conditions of a plan, linearised: a symmetric linear system.

In units of epsilon, the plan is :math:`P = e^{f + g + \lambda - C}`, rows keep :math:`r = e^f` and
columns keep :math:`c = e^g`. A small change of the potentials changes weights and mass by

.. math::

    \begin{bmatrix} D_a & P & P 1 \\ P^\top & D_b & P^\top 1 \\ 1^\top P^\top & 1^\top P & s
    \end{bmatrix} \begin{bmatrix} df \\ dg \\ d\lambda \end{bmatrix} =
    \begin{bmatrix} da + (P \circ dC) 1 \\ db + (P \circ dC)^\top 1 \\ ds + \langle P, dC \rangle
    \end{bmatrix},

where :math:`D_a` and :math:`D_b` are the weights on a diagonal. The system becomes singular if all
of a side moves, or nothing does. With the longer side eliminated, it is the Laplacian of a graph,
which can be solved without cancellation because its entries need no differences of large numbers.
The nodes of that graph are the items of the shorter side and the mass. The plan links the items,
through the eliminated side; the weight that the shorter side keeps also links them, as if through
one further node; the weight that the longer side keeps links them to the mass.

The system serves two purposes. The implicit gradient solves it for cotangents, which is possible
because it is symmetric. A Newton step solves it with `dC = 0` and with the weight that rows have
yet to move as `da`.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def solve(
    plan: Float[Array, "n m"],
    rows_kept: Float[Array, " n"],
    columns_kept: Float[Array, " m"],
    rows_rhs: Float[Array, " n"],
    columns_rhs: Float[Array, " m"],
) -> tuple[Float[Array, " n"], Float[Array, " m"], Float[Array, ""]]:
    r"""Solve the linearised optimality conditions in time :math:`O(n m \min(n, m))`.

    Args:
        plan: transport plan.
        rows_kept: weight that each row keeps.
        columns_kept: weight that each column keeps.
        rows_rhs: right-hand side of the rows' equations.
        columns_rhs: right-hand side of the columns' equations. It must have the same sum as
            `rows_rhs`; that sum is the right-hand side of the mass's equation.

    Returns:
        :math:`df`, :math:`dg` and :math:`d\lambda`.
    """
    if plan.shape[0] >= plan.shape[1]:
        return _solve(plan, rows_kept, columns_kept, rows_rhs, columns_rhs)
    columns, rows, mass = _solve(plan.T, columns_kept, rows_kept, columns_rhs, rows_rhs)
    return rows, columns, mass


def _solve(plan, rows_kept, columns_kept, rows_rhs, columns_rhs):
    # Replaces a weight of zero, so that the solution for this item is finite; it is not used.
    tiny = jnp.finfo(plan.dtype).tiny
    rows = jnp.maximum(plan.sum(1) + rows_kept, tiny)
    columns = jnp.maximum(plan.sum(0) + columns_kept, tiny)
    shares = plan / rows[:, None]
    # Columns are linked through the rows and through the weight that the columns keep, and to the
    # mass through the weight that the rows keep.
    kept_shares = columns_kept / jnp.maximum(columns_kept.sum(), tiny)
    through = _product(plan.T, shares) + columns_kept[:, None] * kept_shares[None, :]
    to_mass = _product(rows_kept, shares)
    links = jnp.pad(jnp.fill_diagonal(through, 0.0, inplace=False), (0, 1))
    links = links.at[-1, :-1].set(to_mass).at[:-1, -1].set(to_mass)
    # Scale to a unit diagonal. Adding the null direction makes the matrix regular and does not
    # change the differences of the solution, and only these are used.
    scale = jnp.sqrt(jnp.maximum(links.sum(0), tiny))
    null = scale / jnp.linalg.norm(scale)
    system = jnp.eye(len(scale), dtype=plan.dtype) - links / scale[:, None] / scale[None, :]
    rhs = columns_rhs - _product(rows_rhs, shares)
    rhs = jnp.append(rhs, -jnp.sum(rows_kept / rows * rows_rhs))
    nodes = jnp.linalg.solve(system + jnp.outer(null, null), rhs / scale) / scale
    differences = nodes[:-1] - nodes[-1]  # the columns' solution plus the mass's
    rows_solution = (rows_rhs - _product(plan, differences)) / rows
    mass_solution = jnp.sum(kept_shares * differences)
    with_mass = _product(rows_solution + mass_solution, plan)
    return rows_solution, (columns_rhs - with_mass) / columns, mass_solution


def _product(left, right):
    return jnp.matmul(left, right, precision=lax.Precision.HIGHEST)
