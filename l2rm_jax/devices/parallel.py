"""Devices: the only file that knows how many there are, how work is mapped over them, and in what
precision they multiply.

A step maps over the devices of all hosts, which meet in it and in the gathers below.
"""

import contextlib
import json
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from l2rm_jax.devices.hosts import Share, usable_cores
from l2rm_jax.devices.programs import Program
from l2rm_jax.errors import ConfigError, StoppedError

AXIS = "batch"
MOST_THREADS = 8  # that wait for programs; each holds the memory of one
# What an accelerator makes of the factors of a float32 product; sums are in float32 either way. It
# left to itself rounds them to 10 bits (GPU) or 8 (TPU). A CPU computes in float32 always.
PRECISIONS = {"float32": "float32", "bfloat16": "BF16_BF16_F32"}


class Replicas:
    """A set of devices that hold the same state and share each batch equally.

    State carries a leading axis over the devices of this host; that form can be donated on one
    host and on several. Batches are split along their first axis, in order, the devices of a host
    next to each other: sample i of the global batch sits on device `i // (B / n)`.
    """

    def __init__(self, devices: Sequence[jax.Device] | None = None):
        self.devices = sorted(devices or jax.devices(), key=lambda device: device.process_index)
        self._local = [d for d in self.devices if d.process_index == jax.process_index()]
        self._hosts = sorted({device.process_index for device in self.devices})

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def local_count(self) -> int:
        """Devices of this host."""
        return len(self._local)

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are parts of the host's own processor."""
        return self._local[0].platform == "cpu"

    @property
    def share(self) -> Share:
        """What this host reads of each batch."""
        return Share(self._hosts.index(jax.process_index()), len(self._hosts))

    def check_batch(self, batch_size: int) -> None:
        """Raises `ConfigError`, with the nearest sizes, when the devices cannot share a batch."""
        n, hosts = len(self), len(self._hosts)
        if n != hosts * self.local_count:
            raise ConfigError(
                f"{n} devices on {hosts} hosts, {self.local_count} of them on this one; expected "
                "as many on every host"
            )
        if batch_size % n:
            below, above = batch_size // n * n, (batch_size // n + 1) * n
            nearest = f"{below} or {above}" if below else f"{above}"
            raise ConfigError(
                f"train.batch_size: {batch_size} pairs cannot be shared by {n} devices; "
                f"the nearest sizes are {nearest}"
            )

    def replicate(self, tree: Any) -> Any:
        """The tree with a leading device axis, one copy on each device of this host."""
        # As a mapped step returns it; in another form, the second step would be compiled anew.
        sharding = NamedSharding(Mesh(np.array(self._local), (AXIS,)), PartitionSpec(AXIS))
        stacked = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * self.local_count), tree)
        # A restored array is committed to one device, and a mapped function would refuse it.
        return jax.device_put(stacked, sharding)

    def unreplicate(self, tree: Any) -> Any:
        """The copy of a replicated tree that is on the first device."""
        # `x[0]` would be a program of all devices that hold x, with communication between them.
        return jax.tree.map(lambda x: x.addressable_data(0)[0], tree)

    def unreplicate_for_checkpoint(self, tree: Any) -> Any:
        """One copy of a replicated tree, as orbax takes it: on several hosts, an array of all."""
        one = self.unreplicate(tree)
        if len(self._hosts) == 1:
            return one
        of_hosts = [next(d for d in self.devices if d.process_index == h) for h in self._hosts]
        sharding = NamedSharding(Mesh(np.array(of_hosts), ("hosts",)), PartitionSpec())

        def of_all(x: jax.Array) -> jax.Array:
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
                return jax.random.wrap_key_data(of_all(jax.random.key_data(x)))
            own = jax.device_put(x, self._local[0])
            return jax.make_array_from_single_device_arrays(x.shape, sharding, [own])

        return jax.tree.map(of_all, one)

    def shard(self, tree: Any) -> Any:
        """This host's rows, spread over its devices."""
        n = self.local_count
        return jax.tree.map(lambda x: np.reshape(x, (n, x.shape[0] // n, *x.shape[1:])), tree)

    def map(self, step: Callable, *, donate: bool = False) -> Program:
        """`step(state, batch)` on every device, with the named axis `AXIS` between them."""
        donated = (0,) if donate else ()
        return Program(jax.pmap(step, axis_name=AXIS, devices=self.devices, donate_argnums=donated))

    def map_local(self, function: Callable, in_axes: tuple) -> Program:
        """`function` on the devices of this host alone, with `AXIS` between these; `None` in
        `in_axes` is copied."""
        return Program(jax.pmap(function, axis_name=AXIS, devices=self._local, in_axes=in_axes))

    def run_ahead(self, calls: Iterable[tuple[Any, Callable]]) -> Iterator[tuple[Any, np.ndarray]]:
        """Each label with what its call, of functions by `map_local`, finds, in their order.

        A few calls are under way at once. An accelerator then has the next one when one ends; a
        CPU's cores work at different ones, where at the small operations of one program two cores
        are hardly faster than one. The functions must not communicate between devices: threads
        start them in any order.
        """
        cores = usable_cores() // self.local_count if self.on_cpu else 1
        threads = min(max(2, cores), MOST_THREADS)
        precision = jax.config.jax_default_matmul_precision  # set for this thread alone
        dispatching = threading.Lock()  # all devices get the programs in one order

        def run(call: Callable) -> np.ndarray:
            with dispatching, jax.default_matmul_precision(precision):
                found = call()
            return np.asarray(found)

        pending: deque = deque()
        wait = True
        pool = ThreadPoolExecutor(threads)
        try:
            for label, call in calls:
                pending.append((label, pool.submit(run, call)))
                if len(pending) > threads:
                    first, found = pending.popleft()
                    yield first, found.result()
            for label, found in pending:
                yield label, found.result()
        except (StoppedError, KeyboardInterrupt):
            wait = False  # what is under way may be a compilation, of any length
            raise
        finally:  # also where the caller has stopped asking
            pool.shutdown(wait, cancel_futures=True)

    def host_rows(self, total: int) -> Int[np.ndarray, " n"]:
        """This host's rows of so many: as many on every host, the last one again where they end."""
        host, hosts = self.share
        size = -(-total // hosts)
        return np.minimum(np.arange(host * size, (host + 1) * size), total - 1)

    def gather_host_rows(self, own: np.ndarray, total: int) -> np.ndarray:
        """What each host found for its `host_rows(total)`, together, on every host."""
        if len(self._hosts) == 1:
            return own
        return np.concatenate(multihost_utils.process_allgather(own))[:total]

    def require_same_on_hosts(self, value: Any, what: str) -> None:
        """Stops all hosts where they would go different ways: one would wait for the others.

        Args:
          value: arrays and JSON values.
          what: their name in the message.

        Raises:
          ConfigError: the hosts do not have the same value.
        """
        if len(self._hosts) == 1:
            return
        text = json.dumps(value, sort_keys=True, default=lambda array: array.tolist())
        own = np.uint32(zlib.crc32(text.encode()))
        found = multihost_utils.process_allgather(own)
        different = [
            host for host, other in zip(self._hosts, found, strict=True) if other != found[0]
        ]
        if different:
            raise ConfigError(
                f"{what}: not the same on all hosts: {different} differ from 0; every host needs "
                "the same flags, the same data and the same work directory"
            )


def matmul_precision(precision: str) -> contextlib.AbstractContextManager:
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
