"""Many problems at once: leading axes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

# Entries of the cost matrices that a CPU keeps close while it iterates on them.
_CLOSE = 2**18


def over_leading_axes(function: Callable, *arrays: Array, ranks: tuple[int, ...]):
    """Maps a function of arrays with these ranks over whatever axes they have before, broadcast.

    An accelerator takes all problems at once. A CPU gains nothing by that once a few of them fill
    its caches: it takes so many after another, and none waits for the slowest of the batch.
    """
    leading = [array.shape[: array.ndim - rank] for array, rank in zip(arrays, ranks, strict=True)]
    batch = jnp.broadcast_shapes(*leading)
    if not batch:
        return function(*arrays)
    flat = [
        jnp.broadcast_to(array, batch + array.shape[array.ndim - rank :]).reshape(
            -1, *array.shape[array.ndim - rank :]
        )
        for array, rank in zip(arrays, ranks, strict=True)
    ]
    results = _map(function, flat)
    return jax.tree.map(lambda result: result.reshape(batch + result.shape[1:]), results)


def _map(function, arrays):
    def together(*arrays):
        return jax.vmap(function)(*arrays)

    def in_turn(*arrays):
        return lax.map(lambda one: function(*one), arrays, batch_size=chunk if chunk > 1 else None)

    count, entries = len(arrays[0]), max(array[0].size for array in arrays)
    chunk = max(1, _CLOSE // entries)
    if chunk >= count:
        return together(*arrays)
    return lax.platform_dependent(*arrays, cpu=in_turn, default=together)
