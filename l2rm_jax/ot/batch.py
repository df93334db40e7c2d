"""Many problems at once: leading axes."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

# Entries of the cost matrices that a CPU iterates on at a time. Fewer stay closer to it, but the
# many small operations of an iteration then start more often: 64 problems of 128 x 128 together
# take 0.8 times as long as four times 16.
_CLOSE = 2**20


def over_leading_axes(function: Callable, *arrays: Array, ranks: tuple[int, ...]):
    """Maps a function of arrays with these ranks over whatever axes they have before, broadcast.

    An array without such axes is the same for all problems, and what follows from it alone is
    computed once.

    An accelerator takes all problems at once. A CPU gains nothing by that once a few of them fill
    its caches: it takes so many after another, and none waits for the slowest of the batch.
    """
    splits = [array.ndim - rank for array, rank in zip(arrays, ranks, strict=True)]
    cores = [array.shape[split:] for array, split in zip(arrays, splits, strict=True)]
    batch = jnp.broadcast_shapes(
        *(array.shape[:split] for array, split in zip(arrays, splits, strict=True))
    )
    if not batch:
        return function(*arrays)

    own = [k for k, split in enumerate(splits) if split > 0]

    def one(*values):
        values = dict(zip(own, values, strict=True))
        return function(*(values.get(k, array) for k, array in enumerate(arrays)))

    flat = [jnp.broadcast_to(arrays[k], batch + cores[k]).reshape(-1, *cores[k]) for k in own]
    results = _map(one, flat, max(1, _CLOSE // max(map(math.prod, cores))))
    return jax.tree.map(lambda result: result.reshape(batch + result.shape[1:]), results)


def _map(function: Callable, arrays: list[Array], chunk: int):
    def together(*arrays):
        return jax.vmap(function)(*arrays)

    def in_turn(*arrays):
        return lax.map(lambda one: function(*one), arrays, batch_size=chunk if chunk > 1 else None)

    if chunk >= len(arrays[0]):
        return together(*arrays)
    return lax.platform_dependent(*arrays, cpu=in_turn, default=together)
