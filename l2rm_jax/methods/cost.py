"""The learned transport cost of L2RM (Sec. 4.2, Eq. 6) and the pairs that it learns from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

MINIMUM = 1e-10  # transport needs positive costs; the reference clips here


def init_cost(size: int) -> dict[str, Array]:
    """Start at cost = relu(1 - similarity), for batches of `size` captions."""
    return {"kernel": -jnp.eye(size), "bias": jnp.ones((size,))}


def cost(params: dict[str, Array], sims: Float[Array, "I J"]) -> Float[Array, "I J"]:
    """One dense layer and a ReLU on each image's row of similarities, in float32 on any device."""
    dense = jnp.matmul(sims, params["kernel"], precision=jax.lax.Precision.HIGHEST)
    return jax.nn.relu(dense + params["bias"])


def resize_cost(params: dict[str, Array], size: int) -> dict[str, Array]:
    """The part of a learned cost that means something for batches of another size.

    Captions take random positions in a batch, so only kernels `a I + b 11^T` and equal biases
    carry over; b is divided by what the number of captions is multiplied by. At the same size
    everything is kept.
    """
    kernel, bias = params["kernel"], params["bias"]
    found = len(bias)
    if found == size:
        return {"kernel": kernel, "bias": bias}
    diagonal = jnp.trace(kernel) / found
    other = (jnp.sum(kernel) - jnp.trace(kernel)) / max(1, found * (found - 1))
    return {
        "kernel": (diagonal - other) * jnp.eye(size) + other * found / size,
        "bias": jnp.full((size,), jnp.mean(bias)),
    }


class Reserved(NamedTuple):
    """Matched pairs kept whole in a reconstructed batch.

    Attributes:
      index: `[K]`, positions in the matched batch, without repetition.
      used: `[K]`, 1.0 for the first n of them and 0.0 for the rest.
    """

    index: Int[Array, " K"]
    used: Float[Array, " K"]


def draw_reserved(key: Array, batch_size: int) -> Reserved:
    """n ~ U{1, ..., 0.1 B} pairs at random, as the reference; at least one whatever the batch."""
    most = max(1, batch_size // 10)
    key_count, key_index = jax.random.split(key)
    count = jax.random.randint(key_count, (), 1, most + 1)
    index = jax.random.permutation(key_index, batch_size)[:most]
    return Reserved(index, (jnp.arange(most) < count).astype(jnp.float32))


def cost_loss(
    params: dict[str, Array], sims: Float[Array, "K J"], reserved: Reserved
) -> Float[Array, ""]:
    """`<pi_sup, cost>` of a reconstructed batch (L2RM Eq. 6).

    In a reconstructed batch most images of matched pairs are replaced by images of mismatched
    ones, and the supervision is 1 at each reserved pair, else 0. The cost acts on each image's row
    alone, so the replaced images never enter the loss: only the K reserved rows are scored.
    """
    own = jnp.take_along_axis(cost(params, sims), reserved.index[:, None], axis=1)[:, 0]
    return jnp.sum(own * reserved.used)


def describe(values: Float[Array, "I J"]) -> dict[str, Array]:
    """What shows a learned cost collapsing: its loss is least at cost 0 everywhere.

    `cost_spread` is the mean over images of the standard deviation over captions, `cost_zero` the
    share of entries at zero. The mean itself may drift: a constant does not change the plan.
    """
    return {
        "cost_mean": jnp.mean(values),
        "cost_spread": jnp.mean(jnp.std(values, axis=1)),
        "cost_zero": jnp.mean((values <= MINIMUM).astype(jnp.float32)),
    }
