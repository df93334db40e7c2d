r"""Make a plan exactly feasible: no row or column above its weight, and exactly the mass.

An entropic plan meets its marginals up to an error. Rows and columns above their weight are scaled
down, which loses a little mass. The lost mass is then filled in from the rows that have weight
left. The rounding of Nguyen et al. fills in an outer product, which would use forbidden pairs. Here
a row with weight left fills pairs that the plan nearly uses, and first those whose columns have
weight left. In a full column, rows make way that are nearer to room (`reach`: 1 for a column with
room, less by a factor with each detour). They have weight left then and fill in next, so the lost
mass travels along a path that an augmenting-path algorithm would take.

References:
    Nguyen et al., On Partial Optimal Transport: Revising the Infeasibility of Sinkhorn and
    Efficient Gradient Methods, AAAI 2024 (ROUND-POT).
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from l2rm_jax.ot.problem import FeasiblePart, replace_value
from l2rm_jax.ot.result import Transport, plan_sums
from l2rm_jax.ot.sums import (
    exact_total,
    matrix_total,
    matrix_vector,
    split_into_blocks,
    vector_matrix,
    vector_total,
)

# Maximum number of filling rounds; a plan that has nearly converged needs one or two.
_ROUNDS = 100
# Factor by which each detour through a full column lowers the reach.
_FAINT = 1e-5


def round_transport(
    transport: Transport, part: FeasiblePart, cost: Float[Array, "n m"]
) -> tuple[Transport, Float[Array, ""]]:
    """Round the plan of a solution, keeping its gradient.

    Args:
        transport: the solution.
        part: the problem that it solves.
        cost: costs, to compute the cost of the rounded plan.

    Returns:
        The solution with plan, sums and cost of the rounded plan, and the weight that this plan
        moves above the weights of rows or columns.
    """
    allowed = part.cost != jnp.inf
    constants = lax.stop_gradient((transport.plan, part.mass, part.a, part.b))
    plan = replace_value(transport.plan, round_plan(*constants, allowed))
    sums = plan_sums(plan)
    pairs = (sums.rows, part.a), (sums.columns, part.b)
    excess = (jnp.maximum(moved - weights, 0.0).sum() for moved, weights in pairs)
    cost = matrix_total(plan * jnp.where(allowed, cost, 0.0))
    return transport._replace(plan=plan, sums=sums, cost=cost), jnp.maximum(*excess)


def round_plan(
    plan: Float[Array, "n m"],
    mass: Float[Array, ""],
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    allowed: Bool[Array, "n m"],
) -> Float[Array, "n m"]:
    """Round a plan to an exactly feasible one; not differentiable.

    Args:
        plan: plan to round, zero where `allowed` is False.
        mass: mass that the result moves. If the pairs cannot move as much, it moves less.
        a: weights of the rows.
        b: weights of the columns.
        allowed: True where transport is allowed.
    """
    tiny, eps = jnp.finfo(plan.dtype).tiny, jnp.finfo(plan.dtype).eps

    def fill_all(state):
        share = jnp.where(allowed, jnp.maximum(plan / jnp.maximum(mass, tiny), tiny), 0.0)
        likely = jnp.sqrt(jnp.sqrt(jnp.sqrt(share)))  # no pair is out of reach
        return lax.while_loop(is_unfinished, lambda state: fill(likely, state), state)

    def fill(likely, state):
        plan, missing, via, count = state
        columns = _column_sums(plan)
        room = jnp.maximum(b - columns, 0.0)
        reach = jnp.maximum(jnp.where(room > eps * b, 1.0, 0.0), _FAINT * via)
        row_reach = jnp.where(allowed, reach[None, :], 0.0).max(1)
        near_room = jnp.minimum(plan / missing, 1.0) * row_reach[:, None]
        spare = jnp.maximum(a - plan.sum(1), 0.0)
        pull = likely * (room + _FAINT * via * b)[None, :]
        row_pull = jnp.maximum(pull.sum(1), tiny)
        # Rows with weight left fill first, by their pull; the others share the rest equally.
        wanted = row_pull * spare
        given = jnp.minimum(wanted * (missing / jnp.maximum(wanted.sum(), tiny)), spare)
        left = spare - given
        given = given + left * ((missing - given.sum()) / jnp.maximum(left.sum(), tiny))
        offer = pull * (given / row_pull)[:, None]
        over = jnp.maximum(columns + _column_sums(offer) - b, 0.0)
        makes_way = plan * row_reach[:, None]
        makes_way = makes_way * (over / jnp.maximum(_column_sums(makes_way), tiny))[None, :]
        plan, missing = _scale_down(plan - jnp.minimum(makes_way, plan) + offer, mass, a, b)
        return plan, missing, near_room.max(0), count + 1

    def is_unfinished(state):
        _, missing, _, count = state
        return (missing > eps / 2 * mass) & (count < _ROUNDS)

    start = *_scale_down(plan, mass, a, b), jnp.ones_like(b), jnp.int32(0)
    # A plan that has converged is usually done by now.
    return lax.cond(is_unfinished(start), fill_all, lambda state: state, start)[0]


def _scale_down(plan, mass, a, b):
    """Scale rows, columns and then the whole plan down to their limits.

    Returns:
        The plan and its missing mass.
    """
    tiny, n = jnp.finfo(plan.dtype).tiny, len(a)
    blocks = split_into_blocks(plan)
    u = jnp.minimum(a / jnp.maximum(plan.sum(1), tiny), 1.0)
    v = jnp.minimum(b / jnp.maximum(vector_matrix(u, blocks), tiny), 1.0)
    total = vector_total(u * matrix_vector(blocks, v, n))
    u = u * jnp.minimum(mass / jnp.maximum(total, tiny), 1.0)
    plan = plan * u[:, None] * v[None, :]
    total, error = exact_total(plan.sum(1))
    return plan, (mass - total) - error


def _column_sums(plan):
    """Column sums to nearly all digits."""
    return vector_matrix(jnp.ones_like(plan[:, 0]), split_into_blocks(plan))
