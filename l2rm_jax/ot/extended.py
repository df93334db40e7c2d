"""The extended problem: partial transport as ordinary transport with a dummy row and column.

The dummy row supplies the weight that columns do not receive, and the dummy column takes the weight
that rows do not send (L2RM supplement Eq. 1-3, after Chapel et al. 2020). README.md explains the
costs of the dummies.

References:
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
    Chapel et al., Partial Optimal Transport with Applications on Positive-Unlabeled Learning,
    NeurIPS 2020.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Replaces a weight of zero, whose logarithm would be infinite.
_NO_WEIGHT = 1e-20


class Extended(NamedTuple):
    """An ordinary transport problem whose last row and column are the dummies."""

    cost: Float[Array, "n+1 m+1"]
    p: Float[Array, " n+1"]  # weights of the rows
    q: Float[Array, " m+1"]  # weights of the columns


def extend(
    cost: Float[Array, "n m"],
    mass: float | Float[Array, ""],
    a: Float[Array, " n"],
    b: Float[Array, " m"],
    mask: Bool[Array, "n m"],
    *,
    xi: float | Float[Array, ""] = 0.0,
    corner: float | Float[Array, ""] = jnp.inf,
) -> Extended:
    """Add the dummy row and the dummy column.

    Args:
        cost: transport cost.
        mass: mass to move.
        a: weights of the rows.
        b: weights of the columns.
        mask: True where transport is allowed; elsewhere the cost becomes infinite.
        xi: cost between an item and a dummy. The plan does not depend on it.
        corner: cost between the two dummies, on top of 2 xi: the A of the paper. If it is finite,
            more than `mass` moves.
    """
    extended = jnp.pad(jnp.where(mask, cost, jnp.inf), ((0, 1), (0, 1)), constant_values=xi)
    extended = extended.at[-1, -1].set(2 * xi + corner)
    p = jnp.maximum(jnp.append(a, b.sum() - mass), _NO_WEIGHT)
    q = jnp.maximum(jnp.append(b, a.sum() - mass), _NO_WEIGHT)
    return Extended(extended, p, q)
