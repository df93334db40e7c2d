"""The solver of L2RM's authors, iteration for iteration (L2RM supplement Alg. 2)."""

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from l2rm_jax.ot.extended import extend
from l2rm_jax.ot.log_domain import Potentials, Solution


def authors_sinkhorn(cost, mass, epsilon, a, b, mask, threshold, max_iterations) -> Solution:
    """Run Sinkhorn on the extended problem with `A = max(cost)`, through which mass leaks.

    It stops when the row potentials, dummy included, change by less than `threshold` (Euclidean
    norm, in units of the cost), typically before convergence. The plan and the moved weights are in
    the caller's units, the potentials in units of epsilon. `Solution.error` is the last change of
    the row potentials.
    """
    rows, columns = a > 0, b > 0
    # The authors take the maximum over masked entries too; padding must not count.
    is_read = jnp.isfinite(cost) & rows[:, None] & columns[None, :]
    corner = jnp.where(is_read, cost, 0.0).max()
    problem = extend(cost, mass, a, b, mask, corner=corner)
    real_rows, real_columns = jnp.append(rows, True), jnp.append(columns, True)
    log_p = jnp.where(real_rows, jnp.log(problem.p), -jnp.inf)
    log_q = jnp.where(real_columns, jnp.log(problem.q), -jnp.inf)
    scaled = problem.cost / epsilon
    # The authors start from zero potentials, with xi = 100 max(cost) as the cost of the dummies.
    # Without xi, dummy potentials that start lower by xi give the same iterates.
    u = jnp.zeros_like(log_p).at[-1].set(-100.0 * corner / epsilon)
    v = jnp.zeros_like(log_q).at[-1].set(-100.0 * corner / epsilon)
    v = jnp.where(real_columns, v, -jnp.inf)

    def is_unfinished(state):
        _, _, iteration, change = state
        return (iteration < max_iterations) & (change >= threshold)

    def iterate(state):
        u, v, iteration, _ = state
        new_u = log_p - logsumexp(v[None, :] - scaled, axis=1)
        new_v = log_q - logsumexp(new_u[:, None] - scaled, axis=0)
        change = jnp.where(real_rows, new_u - u, 0.0)
        return new_u, new_v, iteration + 1, epsilon * jnp.linalg.norm(change)

    start = (u, v, jnp.int32(0), jnp.asarray(jnp.inf, u.dtype))
    u, v, iterations, change = lax.while_loop(is_unfinished, iterate, start)
    plan = jnp.exp(u[:, None] + v[None, :] - scaled)
    potentials = Potentials(u[:-1], v[:-1], u[-1], v[-1])
    moved = jnp.where(rows, a - plan[:-1, -1], 0.0), jnp.where(columns, b - plan[-1, :-1], 0.0)
    return Solution(plan[:-1, :-1], *moved, potentials, iterations, change)
