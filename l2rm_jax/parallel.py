"""Devices: the only file that knows how many there are, how a step is mapped over them, and in
what precision they multiply."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from l2rm_jax.errors import ConfigError

AXIS = "batch"
# What an accelerator makes of the factors of a float32 product; sums are in float32 either way. It
# left to itself rounds them to 10 bits (GPU) or 8 (TPU). A CPU computes in float32 always.
PRECISIONS = {"float32": "float32", "bfloat16": "BF16_BF16_F32"}


class Replicas:
    """A set of devices that hold the same state and share each batch equally.

    State carries a leading device axis; that form can be donated on one host and on several.
    Batches are split along their first axis, in order: sample i of the global batch sits on device
    `i // (B / n)`.
    """

    def __init__(self, devices: Sequence[jax.Device] | None = None):
        self.devices = list(devices or jax.local_devices())

    def __len__(self) -> int:
        return len(self.devices)

    def check_batch(self, batch_size: int) -> None:
        """Raises `ConfigError`, with the nearest sizes, when the devices cannot share a batch."""
        n = len(self)
        if batch_size % n:
            below, above = batch_size // n * n, (batch_size // n + 1) * n
            nearest = f"{below} or {above}" if below else f"{above}"
            raise ConfigError(
                f"train.batch_size: {batch_size} pairs cannot be shared by {n} devices; "
                f"the nearest sizes are {nearest}"
            )

    def replicate(self, tree: Any) -> Any:
        """The tree with a leading device axis, one copy on each device."""
        sharding = NamedSharding(
            Mesh(np.array(self.devices), ("devices",)), PartitionSpec("devices")
        )
        stacked = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * len(self)), tree)
        # A restored array is committed to one device, and a mapped function would refuse it.
        return jax.device_put(stacked, sharding)

    def first(self, tree: Any) -> Any:
        """One copy of a replicated tree."""
        return jax.tree.map(lambda x: x[0], tree)

    def shard(self, tree: Any) -> Any:
        n = len(self)
        return jax.tree.map(lambda x: np.reshape(x, (n, x.shape[0] // n, *x.shape[1:])), tree)

    def map(self, step: Callable, *, donate: bool = False) -> Callable:
        """`step(state, batch)` on every device, with the named axis `AXIS` between them."""
        donated = (0,) if donate else ()
        return jax.pmap(step, axis_name=AXIS, devices=self.devices, donate_argnums=donated)

    def map_over(self, function: Callable, in_axes: tuple) -> Callable:
        """`function` on every device, without communication; `None` in `in_axes` is copied."""
        return jax.pmap(function, devices=self.devices, in_axes=in_axes)


def products_in(precision: str) -> contextlib.AbstractContextManager:
    """The matrix products of what is compiled within; those that name their own keep it.

    Raises:
      ConfigError: `precision` is none of `PRECISIONS`.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision: {precision!r} is none of {', '.join(PRECISIONS)}")
    return jax.default_matmul_precision(PRECISIONS[precision])


def global_rows(x: jax.Array, axis_name: str | None) -> jax.Array:
    """The rows of all devices, in order; `x` itself when nothing is mapped."""
    return x if axis_name is None else jax.lax.all_gather(x, axis_name, tiled=True)


def select_rows(x: jax.Array, rows: jax.Array, axis_name: str | None) -> jax.Array:
    """`global_rows(x)[rows]` without moving the other rows between devices."""
    if axis_name is None:
        return x[rows]
    local = rows - jax.lax.axis_index(axis_name) * x.shape[0]
    mine = (local >= 0) & (local < x.shape[0])
    mine = mine.reshape(-1, *[1] * (x.ndim - 1))
    picked = jnp.where(mine, x[jnp.clip(local, 0, x.shape[0] - 1)], 0)
    return jax.lax.psum(picked, axis_name)


def device_mean(tree: Any, axis_name: str | None) -> Any:
    """Mean over devices: of gradients through `all_gather`, the gradient of the global loss."""
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)
