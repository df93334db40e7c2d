"""The learned transport cost of L2RM (Sec. 4.2, Eq. 6), and the pairs that train it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MINIMUM = 1e-10  # transport needs positive costs; the reference code clips at this value too


def init_cost(size: int) -> dict[str, Array]:
    """Initial parameters for batches of `size` captions: cost = relu(1 - similarity)."""
    return {"kernel": -jnp.eye(size), "bias": jnp.ones((size,))}


def cost(params: dict[str, Array], sims: Float[Array, "I J"]) -> Float[Array, "I J"]:
    """Transport cost: one dense layer and a ReLU, applied to each image's row of similarities.

    The product is computed in float32 on every device. Costs are >= 0.
    """
    dense = jnp.matmul(sims, params["kernel"], precision=jax.lax.Precision.HIGHEST)
    return jax.nn.relu(dense + params["bias"][None])


class Reserved(NamedTuple):
    """Matched pairs that keep their images in a reconstructed batch.

    Attributes:
      index: `[K]`, distinct positions in the matched batch.
      used: `[K]`, 1.0 for the first n positions, which are reserved, and 0.0 for the others.
    """

    index: Int[Array, " K"]
    used: Float[Array, " K"]


def draw_reserved(key: Array, batch_size: int) -> Reserved:
    """Draw n random pairs, n ~ U{1, ..., 0.1 B} as in the reference code, but at least one."""
    limit = max(1, batch_size // 10)
    key_count, key_index = jax.random.split(key)
    count = jax.random.randint(key_count, (), 1, limit + 1)
    index = jax.random.permutation(key_index, batch_size)[:limit]
    return Reserved(index, (jnp.arange(limit) < count).astype(jnp.float32))


def cost_loss(
    params: dict[str, Array], sims: Float[Array, "K J"], reserved: Reserved
) -> Float[Array, ""]:
    """Loss of the learned cost: `<pi_sup, cost>` of a reconstructed batch (L2RM Eq. 6).

    A reconstructed batch replaces most images of matched pairs by images of mismatched pairs. The
    supervision `pi_sup` is 1 at each reserved pair and 0 elsewhere. An image's costs depend only on
    its own row of similarities, so replaced images do not enter the loss, and only the K rows of
    `reserved` are needed.

    Args:
      params: parameters of the cost.
      sims: similarities of the images at `reserved.index` with all captions.
      reserved: the reserved pairs.
    """
    costs = jnp.take_along_axis(cost(params, sims), reserved.index[:, None], axis=1)[:, 0]
    return jnp.sum(costs * reserved.used)


def cost_statistics(values: Float[Array, "I J"]) -> dict[str, Array]:
    """Statistics that reveal a collapse of all costs to 0, the minimum of their loss.

    `cost_mean` is the mean of all costs, which may drift: a constant does not change the plan.
    `cost_spread` is the standard deviation over captions, averaged over images. `cost_zero` is the
    share of costs at zero.
    """
    return {
        "cost_mean": jnp.mean(values),
        "cost_spread": jnp.mean(jnp.std(values, axis=1)),
        "cost_zero": jnp.mean((values <= MINIMUM).astype(jnp.float32)),
    }
