r"""Few-iteration matching of many small sets, as OMIT matches regions with words.

A handful of alternating projections replaces a converged plan. They are cheap enough to run for
every image-caption pair of a batch, and differentiable by unrolling. Sets of different sizes and
dustbins need no special code: an item without weight is ignored, and a dustbin is an item.
`partial_sinkhorn` in mode "fixed" does not replace it: it searches the mass in each iteration, in
the log domain, so its iterates differ from OMIT's and cost several times the work.

References:
    Pan et al., Learning Image-Text Matching with Optimal Partial Transport (OMIT), Eq. 3 and 4.
    Benamou et al., Iterative Bregman Projections for Regularized Transportation Problems, 2015.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Added to every sum before dividing by it. It is negligible against the sum of an item with weight,
# and the zeros of an item without weight stay zeros, in the gradient too.
_FLOOR = 1e-12


def match(
    cost: Float[Array, "... n m"],
    a: Float[Array, "... n"],
    b: Float[Array, "... m"],
    *,
    epsilon: float,
    iterations: int,
) -> Float[Array, "... n m"]:
    r"""Run a few Bregman iterations from ``exp(-cost / epsilon)`` and return the plan.

    Each iteration scales the rows to ``a``, then the columns to ``b``: column sums end exact, row
    sums nearly so. Many iterations give the entropic plan.

    Dustbins are an additional row and an additional column. In OMIT they have the cost of a global
    vector and a weight like the other items. With cost 0, an infinite cost between the two and the
    weights ``|b| - s`` and ``|a| - s``, dustbins leave mass ``s`` to the other items, and the plan
    equals that of `partial_sinkhorn`. Dustbins without weight have no effect.

    The arithmetic is in the kernel domain. Float32 is safe for any cost and ``epsilon`` as long as
    iterations are few: each can move a potential by no more than about ``epsilon log(n m)``.

    Args:
        cost: cost of each pair; infinite if the pair is forbidden, any value if one of its items
            has no weight. Each item with weight needs a finite cost.
        a: weights of the rows, >= 0; a row of weight 0 is padding.
        b: weights of the columns, >= 0, with the same total as ``a``.
        epsilon: strength of the entropy, > 0, in units of the cost (lambda in OMIT).
        iterations: at least 1; OMIT runs 3.

    Returns:
        The plan, exactly zero for items without weight.
    """
    total = jax.lax.stop_gradient(a.sum(-1, keepdims=True))
    unit = jnp.where(total > 0, total, 1.0)
    a, b = a / unit, b / unit
    cost = jnp.where((a > 0)[..., :, None] & (b > 0)[..., None, :], cost, jnp.inf)
    # Subtract the rows' minima, then the columns': each row and each column of the kernel then has
    # an entry of 1, so no sum underflows. A constant subtracted from a row does not change the
    # iterates. If subtracted from a column, it changes only the first row scaling: hence `start`.
    constant_cost = jax.lax.stop_gradient(cost)
    rows = _finite_min(constant_cost, axis=-1)
    columns = _finite_min(constant_cost - rows, axis=-2)
    kernel = jnp.exp((rows + columns - cost) / epsilon)
    start = jnp.sum(kernel * jnp.exp(-columns / epsilon), axis=-1) + _FLOOR
    plan = _scale_columns(kernel * (a / start)[..., None], b, _FLOOR)
    return unit[..., None] * project(plan, a, b, iterations=iterations - 1)


def project(
    plan: Float[Array, "... n m"],
    a: Float[Array, "... n"],
    b: Float[Array, "... m"],
    *,
    iterations: int,
    floor: float = _FLOOR,
) -> Float[Array, "... n m"]:
    """Scale the rows of a non-negative matrix to ``a`` and its columns to ``b``, in turn.

    Args:
        plan: matrix to start from, with a positive entry for each item with weight.
        a: weights of the rows, >= 0.
        b: weights of the columns, >= 0.
        iterations: number of times that rows and then columns are scaled.
        floor: added to every sum. OMIT's authors use 1e-6, which keeps items with small entries
            from reaching their weight.
    """
    for _ in range(iterations):
        plan = plan * (a / (plan.sum(-1) + floor))[..., None]
        plan = _scale_columns(plan, b, floor)
    return plan


def _scale_columns(plan, b, floor):
    return plan * (b / (plan.sum(-2) + floor))[..., None, :]


def _finite_min(x, axis):
    smallest = x.min(axis=axis, keepdims=True)
    return jnp.where(jnp.isfinite(smallest), smallest, 0.0)
