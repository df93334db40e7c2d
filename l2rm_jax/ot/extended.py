"""The extended problem: partial transport as an ordinary one, with a dummy row and column.

What is not moved of the columns comes from the dummy row, what is not moved of the rows goes to the
dummy column (L2RM supplement Eq. 1-3, after Chapel et al. 2020). See README.md for what its costs
mean.

References:
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
    Chapel et al., Partial Optimal Transport with Applications on Positive-Unlabeled Learning,
    NeurIPS 2020.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# Stands for a weight of zero, whose logarithm would be infinite.
_NO_WEIGHT = 1e-20


class Extended(NamedTuple):
    """An ordinary transport problem: dummies last."""

    cost: Float[Array, "n+1 m+1"]
    p: Float[Array, "n+1"]
    q: Float[Array, "m+1"]


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
    """Adds the dummies.

    Args:
        cost: transport cost.
        mass: mass to move.
        a: weights of the rows.
        b: weights of the columns.
        mask: True where transport is allowed; elsewhere the cost is infinite.
        xi: what an item pays for staying. The plan does not depend on it.
        corner: what the dummies pay, beyond 2 xi, for mass that they exchange: A. Less than
            infinite lets more than `mass` move.
    """
    extended = jnp.pad(jnp.where(mask, cost, jnp.inf), ((0, 1), (0, 1)), constant_values=xi)
    extended = extended.at[-1, -1].set(2 * xi + corner)
    p = jnp.maximum(jnp.append(a, b.sum() - mass), _NO_WEIGHT)
    q = jnp.maximum(jnp.append(b, a.sum() - mass), _NO_WEIGHT)
    return Extended(extended, p, q)
