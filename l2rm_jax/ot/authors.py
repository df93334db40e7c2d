"""The solver of L2RM's authors, iteration for iteration (L2RM supplement Alg. 2)."""

import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp

from l2rm_jax.ot.extended import extend
from l2rm_jax.ot.iteration import Potentials, Solution


def repeat_authors(cost, mass, epsilon, a, b, mask, threshold, max_iterations) -> Solution:
    """Sinkhorn on the extended problem with `A = max(cost)`, through which mass leaks.

    It stops when the row potentials, dummy included, change by less than `threshold` (Euclidean
    norm, in units of the cost), typically before convergence. All in the caller's units; the
    potentials alone are over epsilon, and `Solution.error` is the last change.
    """
    corner = jnp.where(jnp.isfinite(cost), cost, 0.0).max()  # masked entries included
    problem = extend(cost, mass, a, b, mask, corner=corner)
    log_p, log_q = jnp.log(problem.p), jnp.log(problem.q)
    scaled = problem.cost / epsilon
    # The authors start from zero potentials with xi = 100 max(cost) in the dummies' cost.
    # Without xi, the same iterates come from dummy potentials that are lower by xi.
    u = jnp.zeros_like(log_p).at[-1].set(-100.0 * corner / epsilon)
    v = jnp.zeros_like(log_q).at[-1].set(-100.0 * corner / epsilon)

    def unfinished(state):
        _, _, iteration, change = state
        return (iteration < max_iterations) & (change >= threshold)

    def iterate(state):
        u, v, iteration, _ = state
        new_u = log_p - logsumexp(v[None, :] - scaled, axis=1)
        new_v = log_q - logsumexp(new_u[:, None] - scaled, axis=0)
        return new_u, new_v, iteration + 1, epsilon * jnp.linalg.norm(new_u - u)

    start = (u, v, jnp.int32(0), jnp.asarray(jnp.inf, u.dtype))
    u, v, iterations, change = lax.while_loop(unfinished, iterate, start)
    plan = jnp.exp(u[:, None] + v[None, :] - scaled)
    potentials = Potentials(u[:-1], v[:-1], u[-1], v[-1])
    return Solution(plan[:-1, :-1], plan[:-1, -1], plan[-1, :-1], potentials, iterations, change)
