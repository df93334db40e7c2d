"""Build the same problem for ott-jax, the reference that the solver is compared with."""

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from l2rm_jax.ot.extended import extend

if TYPE_CHECKING:
    from ott.problems.linear.linear_problem import LinearProblem


def linear_problem(
    cost: Float[Array, "n m"],
    mass: float,
    *,
    epsilon: float,
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    mask: Bool[Array, "n m"] | None = None,
    xi: float = 0.0,
    corner: float = jnp.inf,
) -> "LinearProblem":
    """Build the extended problem for ott-jax's Sinkhorn.

    The partial plan is `plan[:-1, :-1]` of ott-jax's plan. Arguments are as for
    `l2rm_jax.ot.extended.extend`; without `mask`, every pair is allowed.
    """
    # Here, as importing ott imports jaxopt, which is not maintained any more and warns.
    from ott.geometry.geometry import Geometry
    from ott.problems.linear.linear_problem import LinearProblem

    mask = jnp.ones(cost.shape, bool) if mask is None else mask
    problem = extend(cost, mass, a, b, mask, xi=xi, corner=corner)
    return LinearProblem(Geometry(problem.cost, epsilon=epsilon), problem.p, problem.q)
