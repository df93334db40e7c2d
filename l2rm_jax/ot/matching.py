r"""Few-iteration matching of many small sets, as OMIT matches regions with words.

A handful of alternating projections instead of a converged plan: cheap enough to run for every
image-caption pair of a batch, and differentiable by unrolling. Sets of different sizes and
dustbins need no other code: an item without weight takes no part, and a dustbin is an item.
`partial_sinkhorn` in mode "fixed" searches for the mass at each of its iterations, in the log
domain: other iterates than OMIT's, and several times the work.

References:
    Pan et al., Learning Image-Text Matching with Optimal Partial Transport (OMIT), Eq. 3 and 4.
    Benamou et al., Iterative Bregman Projections for Regularized Transportation Problems, 2015.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Added to sums that are divided by: nothing beside that of an item with a share of 1, and it keeps
# the zeros of one without weight zeros, in the gradient too.
_FLOOR = 1e-12


def match(
    cost: Float[Array, "... n m"],
    a: Float[Array, "... n"],
    b: Float[Array, "... m"],
    *,
    epsilon: float,
    iterations: int,
) -> Float[Array, "... n m"]:
    r"""The plan after a few Bregman iterations from ``exp(-cost / epsilon)``.

    Each iteration scales the rows to ``a``, then the columns to ``b``, so the columns' sums are
    right and the rows' nearly; run long, it is the entropic plan. A dustbin is a further row and
    column: OMIT's have the cost of a global vector and a weight as the others; with cost 0, an
    infinite cost between the two and the weights ``|b| - s`` and ``|a| - s``, they leave mass ``s``
    to the other items and the plan is that of `partial_sinkhorn`. Without weight, they are not
    there.

    Kernel-domain arithmetic: float32 is safe for any cost and ``epsilon`` while the iterations are
    few (each can move a potential by no more than about ``epsilon log(n m)``).

    Args:
        cost: cost of each pairing; infinite where it is forbidden, anything where one side has no
            weight. Each item with weight needs a finite one.
        a: weights of the rows, >= 0; a row of weight 0 is padding.
        b: weights of the columns, likewise, of the same total.
        epsilon: strength of the entropy, > 0, in units of the cost (lambda in OMIT).
        iterations: at least 1; OMIT runs 3.

    Returns:
        The plan, exactly zero at items without weight.
    """
    total = jax.lax.stop_gradient(a.sum(-1, keepdims=True))
    unit = jnp.where(total > 0, total, 1.0)
    a, b = a / unit, b / unit
    cost = jnp.where((a > 0)[..., :, None] & (b > 0)[..., None, :], cost, jnp.inf)
    # The plan does not depend on what is taken off a row or a column, but for the start, where
    # the columns count. Off come the rows' minima, then the columns': an exponential of each row
    # and of each column is then 1, and no sum vanishes.
    fixed = jax.lax.stop_gradient(cost)
    rows = _finite_min(fixed, axis=-1)
    columns = _finite_min(fixed - rows, axis=-2)
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
    """Scales the rows of a non-negative matrix to ``a`` and its columns to ``b``, in turn.

    Args:
        plan: where to start; at least one positive entry for each item with weight.
        a: weights of the rows, >= 0.
        b: weights of the columns, >= 0.
        iterations: how often both are scaled.
        floor: added to every sum. OMIT's authors have 1e-6, which holds back the items whose
            entries are small beside the others'.
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
