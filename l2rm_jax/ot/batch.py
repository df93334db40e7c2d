"""Batches of problems: a function of one problem, mapped over leading axes."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

# Entries of the cost matrices that a CPU iterates on at a time, so that they stay in its caches.
# Smaller chunks fit better but repeat the fixed cost of the many small operations of an iteration:
# 64 problems of 128 x 128 solved together take 0.8 times as long as four chunks of 16.
_CHUNK_ENTRIES = 2**20


def map_leading_axes(function: Callable, *arrays: Array, ranks: tuple[int, ...]):
    """Map a function of arrays with the given ranks over all axes before these.

    Leading axes broadcast against each other. An array without leading axes is shared by all
    problems, and values that depend only on shared arrays are computed once.

    An accelerator solves all problems at once. A CPU gains nothing from that once a few problems
    fill its caches: it solves one chunk of them after another, so that no chunk waits for the
    slowest problem of the whole batch.

    Args:
        function: takes one array per rank and returns a pytree of arrays.
        arrays: its arguments, each with any number of leading axes.
        ranks: number of axes that `function` expects of each array.

    Returns:
        The results of `function`, with the broadcast leading axes in front.
    """
    splits = [array.ndim - rank for array, rank in zip(arrays, ranks, strict=True)]
    cores = [array.shape[split:] for array, split in zip(arrays, splits, strict=True)]
    batch = jnp.broadcast_shapes(
        *(array.shape[:split] for array, split in zip(arrays, splits, strict=True))
    )
    if not batch:
        return function(*arrays)

    batched = [k for k, split in enumerate(splits) if split > 0]

    def solve_one(*values):
        own = dict(zip(batched, values, strict=True))
        return function(*(own.get(k, array) for k, array in enumerate(arrays)))

    flat = [jnp.broadcast_to(arrays[k], batch + cores[k]).reshape(-1, *cores[k]) for k in batched]
    results = _map(solve_one, flat, max(1, _CHUNK_ENTRIES // max(map(math.prod, cores))))
    return jax.tree.map(lambda result: result.reshape(batch + result.shape[1:]), results)


def _map(function: Callable, arrays: list[Array], chunk: int):
    def together(*arrays):
        return jax.vmap(function)(*arrays)

    def in_turn(*arrays):
        return lax.map(lambda one: function(*one), arrays, batch_size=chunk if chunk > 1 else None)

    if chunk >= len(arrays[0]):
        return together(*arrays)
    return lax.platform_dependent(*arrays, cpu=in_turn, default=together)
