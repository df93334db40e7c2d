"""Map work over devices, and set the precision of their matrix products.

No other file depends on the number of devices. A training step is mapped over the devices of all
hosts, by `pmap` on one host and by `shard_map` on several; hosts communicate in the step and in
`Replicas.gather_host_rows` and `Replicas.require_same_on_hosts`, which every host must call.
"""

import contextlib
import functools
import json
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int

from l2rm_jax.devices.hosts import Share, usable_cores
from l2rm_jax.devices.programs import Program
from l2rm_jax.errors import ConfigError, StoppedError

P = ParamSpec("P")
T = TypeVar("T")

AXIS = "batch"
# Function that maps over the devices of one host: "pmap" or "shard_map". Results are the same bit
# for bit. Devices of several hosts are always mapped by `shard_map`.
MAPPED_BY = "pmap"
WHOLE, SPLIT = PartitionSpec(), PartitionSpec(AXIS)
SLOW_STEP_SECONDS = 5.0  # the host prepares the next step in less than 1% of this time
MAX_THREADS = 8  # threads that wait for programs; each holds the memory of one program
# JAX's precision of the factors of a float32 matrix product on an accelerator; sums are in float32
# in both. By default, a GPU would round factors to 10 bits and a TPU to 8. A CPU always uses
# float32.
PRECISIONS = {"float32": "float32", "bfloat16": "BF16_BF16_F32"}


class Replicas:
    """Devices that hold the same state and share each batch equally.

    A state is whole on every device. Batches are split along their first axis, in order, with the
    devices of a host next to each other: of a global batch of size B on n devices, sample i is on
    device `i // (B / n)`.

    Args:
      devices: devices to use; all devices of all hosts when None.
    """

    def __init__(self, devices: Sequence[jax.Device] | None = None):
        self.devices = sorted(devices or jax.devices(), key=lambda device: device.process_index)
        self._local = [d for d in self.devices if d.process_index == jax.process_index()]
        self._hosts = sorted({device.process_index for device in self.devices})

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def local_count(self) -> int:
        """Number of devices of this host."""
        return len(self._local)

    @property
    def on_cpu(self) -> bool:
        """Whether the devices are CPU devices."""
        return self._local[0].platform == "cpu"

    @property
    def compile_on_host(self) -> bool:
        """Whether compiling does not use the devices; a GPU tries out kernels while compiling."""
        return self._local[0].platform in ("cpu", "tpu")

    @property
    def share(self) -> Share:
        """The part of each global batch that this host reads."""
        return Share(self._hosts.index(jax.process_index()), len(self._hosts))

    def check_batch(self, batch_size: int) -> None:
        """Check that the devices can share a batch of this many pairs equally.

        Raises:
          ConfigError: the devices cannot share the batch (the message names the nearest sizes), or
            the hosts have different numbers of devices.
        """
        n, hosts = len(self), len(self._hosts)
        if n != hosts * self.local_count:
            raise ConfigError(
                f"devices: found {self.local_count} on this host and {n} on {hosts} hosts, "
                "expected the same number on every host"
            )
        if batch_size % n:
            below, above = batch_size // n * n, (batch_size // n + 1) * n
            nearest = f"{below} or {above}" if below else f"{above}"
            raise ConfigError(
                f"train.batch_size: {batch_size} pairs cannot be shared by {n} devices; "
                f"the nearest sizes are {nearest}"
            )

    def replicate(self, tree: Any) -> Any:
        """Copy a tree, the same on every host, to each device of all hosts."""
        return jax.make_array_from_process_local_data(_sharding(self.devices, WHOLE), _copy(tree))

    def unreplicate(self, tree: Any) -> Any:
        """Copy a replicated tree to arrays of this host's first device."""
        return _copy(jax.tree.map(lambda x: x.addressable_data(0), tree))

    def to_host(self, tree: Any) -> Any:
        """Return the copies of a replicated tree on this host's devices, for `map_local`."""
        mesh = Mesh(np.array(self.devices), (AXIS,))
        return multihost_utils.global_array_to_host_local_array(tree, mesh, WHOLE)

    def shard(self, tree: Any) -> Any:
        """Split this host's rows over its devices, for `map`: `[B, ...]` to `[n, B / n, ...]`."""
        rows = self._rows(tree)
        if len(self._hosts) == 1:  # the mapped function places them at less cost
            return rows
        return jax.make_array_from_process_local_data(_sharding(self.devices, SPLIT), rows)

    def shard_local(self, tree: Any) -> Any:
        """Split rows as `shard` does, for `map_local`."""
        return jax.device_put(self._rows(tree), _sharding(self._local, SPLIT))

    def _rows(self, tree: Any) -> Any:
        n = self.local_count
        return jax.tree.map(lambda x: np.reshape(x, (n, x.shape[0] // n, *x.shape[1:])), tree)

    def map(self, step: Callable, *, donate: bool = False) -> Program:
        """Map `step(state, batch)` over the devices of all hosts, which communicate along `AXIS`.

        Args:
          step: pure function of a replicated state and a sharded batch; its results must be the
            same on every device.
          donate: whether a call may overwrite its state; never on a CPU, where this takes longer.
        """
        donated = (0,) if donate and self.devices[0].platform != "cpu" else ()
        return Program(_mapped(step, self.devices, (None, 0), None, donated))

    def map_local(self, function: Callable, in_axes: tuple, out_axis: int | None = 0) -> Program:
        """Map a function over the devices of this host only, which communicate along `AXIS`.

        Args:
          function: pure function of the arguments that `in_axes` describes.
          in_axes: for each argument, 0 if it has a row for each device, as `shard_local` makes it;
            None passes the argument to each device whole.
          out_axis: likewise for the results; None if they are the same on every device.
        """
        return Program(_mapped(function, self._local, in_axes, out_axis))

    def run_ahead(self, calls: Iterable[tuple[Any, Callable]]) -> Iterator[tuple[Any, np.ndarray]]:
        """Run calls of `map_local` functions in a few threads and yield their results in order.

        An accelerator then has its next program ready when one ends. The cores of a CPU work on
        different programs; on the small operations of a single program, two cores are hardly faster
        than one. The functions must not communicate between devices, because threads start them in
        any order.

        Args:
          calls: pairs of a label and a function without arguments that returns an array.

        Yields:
          Each label with the result of its call.

        Raises:
          Exception: whatever a call raised.
        """
        cores = usable_cores() // self.local_count if self.on_cpu else 1
        threads = min(max(2, cores), MAX_THREADS)
        precision = jax.config.jax_default_matmul_precision  # set for this thread only
        dispatch_lock = threading.Lock()  # all devices must get the programs in the same order

        def run(call: Callable) -> np.ndarray:
            with dispatch_lock, jax.enable_x64(False), jax.default_matmul_precision(precision):
                result = call()
            return np.asarray(result)

        pending: deque = deque()
        wait = True
        pool = ThreadPoolExecutor(threads)
        try:
            for label, call in calls:
                pending.append((label, pool.submit(run, call)))
                if len(pending) > threads:
                    first, future = pending.popleft()
                    yield first, future.result()
            for label, future in pending:
                yield label, future.result()
        except (StoppedError, KeyboardInterrupt):
            wait = False  # a call may be compiling, which can take minutes
            raise
        finally:  # also if the caller closes this generator early
            pool.shutdown(wait, cancel_futures=True)

    def host_rows(self, total: int) -> Int[np.ndarray, " n"]:
        """Indices of this host's part of `total` rows.

        Every host gets the same number; the last row is repeated if they do not divide evenly.
        """
        host, hosts = self.share
        size = -(-total // hosts)
        return np.minimum(np.arange(host * size, (host + 1) * size), total - 1)

    def gather_host_rows(self, own: np.ndarray, total: int) -> np.ndarray:
        """Gather the hosts' results for their `host_rows(total)`; every host must call this.

        Args:
          own: this host's results `[n, ...]`, one per row.
          total: number of rows on all hosts.

        Returns:
          The results of all rows `[total, ...]`, on every host.
        """
        if len(self._hosts) == 1:
            return own
        return np.concatenate(multihost_utils.process_allgather(own))[:total]

    def require_same_on_hosts(self, value: Any, what: str) -> None:
        """Check that all hosts have the same value; every host must call this.

        Hosts that differ would run different programs, and wait for each other forever.

        Args:
          value: tree of arrays and JSON values.
          what: name of the value in the message.

        Raises:
          ConfigError: the values differ; raised on all hosts.
        """
        if len(self._hosts) == 1:
            return
        text = json.dumps(value, sort_keys=True, default=lambda array: array.tolist())
        own = np.uint32(zlib.crc32(text.encode()))
        checksums = multihost_utils.process_allgather(own)
        different = [
            host
            for host, other in zip(self._hosts, checksums, strict=True)
            if other != checksums[0]
        ]
        if different:
            raise ConfigError(
                f"{what}: found a difference between host 0 and {different}, expected the same on "
                "all hosts. Use the same flags, data and work directory on every host"
            )


def _copy(tree: Any) -> Any:
    """Copy a tree, so that it shares no memory with a state that is donated."""
    return jax.tree.map(partial(jnp.array, copy=True), tree)


def _sharding(devices: Sequence[jax.Device], spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), spec)


def _mapped(
    function: Callable,
    devices: Sequence[jax.Device],
    in_axes: tuple,
    out_axis: int | None,
    donated: tuple[int, ...] = (),
) -> Callable:
    """Map a function over devices, which communicate along `AXIS`.

    Args:
      function: the function.
      devices: the devices.
      in_axes: for each argument, 0 if it has a row for each device, None if each gets it whole.
      out_axis: likewise for the results, which must be the same on every device if None.
      donated: positions of arguments whose memory a call may overwrite.
    """
    on_one_host = len({device.process_index for device in devices}) == 1
    if MAPPED_BY == "pmap" and on_one_host and 0 in in_axes:  # it needs an axis to map over
        options = {"in_axes": in_axes, "out_axes": out_axis, "donate_argnums": donated}
        return jax.pmap(function, axis_name=AXIS, devices=devices, **options)

    def on_device(*inputs):
        rows = (
            x if axis is None else jax.tree.map(lambda leaf: leaf[0], x)
            for x, axis in zip(inputs, in_axes, strict=True)
        )
        results = jax.tree.map(jnp.asarray, function(*rows))
        return results if out_axis is None else jax.tree.map(lambda leaf: leaf[None], results)

    *specs, out_specs = (WHOLE if axis is None else SPLIT for axis in (*in_axes, out_axis))
    mesh = Mesh(np.array(devices), (AXIS,))
    # A check of replicated values would reject the solver's `while_loop`.
    options = {"mesh": mesh, "in_specs": tuple(specs), "out_specs": out_specs, "check_vma": False}
    return jax.jit(jax.shard_map(on_device, **options), donate_argnums=donated)


class RunAhead:
    """Keep the host at most one step ahead of its devices, or not ahead if steps are slow.

    JAX returns from a step before it has run, and would start any number of further steps. Started
    steps cannot be cancelled, so a signal to stop would have to wait for all of them.
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._is_slow = True  # until a step is timed
        self._time = time.monotonic()

    def limit(self, result: Any) -> None:
        """Wait until the step before the step of `result` has ended.

        If the last step took longer than `SLOW_STEP_SECONDS`, wait for this one too: compared with
        it, the pause of the devices until the next step is short.
        """
        jax.block_until_ready(result if self._is_slow else self._previous)
        now = time.monotonic()
        self._is_slow = now - self._time > SLOW_STEP_SECONDS
        self._previous, self._time = result, now


def in_float32(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function in JAX's default types, whatever `jax_enable_x64` is set to for other work.

    Otherwise, part of a state would become float64, and a checkpoint could not be read again.
    """

    @functools.wraps(function)
    def run(*arguments: P.args, **settings: P.kwargs) -> T:
        with jax.enable_x64(False):
            return function(*arguments, **settings)

    return run


def matmul_precision(precision: str) -> contextlib.AbstractContextManager:
    """Set the precision of matrix products that are compiled within a `with` block.

    Products that set a precision themselves keep it. As in `in_float32`, nothing is float64.

    Args:
      precision: a key of `PRECISIONS`.

    Raises:
      ConfigError: there is no such precision.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision: found {precision!r}, expected {' or '.join(PRECISIONS)}")
    return _precision(PRECISIONS[precision])


@contextlib.contextmanager
def _precision(name: str) -> Iterator[None]:
    with jax.enable_x64(False), jax.default_matmul_precision(name):
        yield


def global_rows(x: jax.Array, axis_name: str | None) -> jax.Array:
    """Gather the rows of all devices in order; `x` itself if `axis_name` is None."""
    return x if axis_name is None else jax.lax.all_gather(x, axis_name, tiled=True)


def select_rows(x: jax.Array, rows: jax.Array, axis_name: str | None) -> jax.Array:
    """`global_rows(x)[rows]`, but only the selected rows move between devices."""
    if axis_name is None:
        return x[rows]
    local = rows - jax.lax.axis_index(axis_name) * x.shape[0]
    is_local = (local >= 0) & (local < x.shape[0])
    is_local = is_local.reshape(-1, *[1] * (x.ndim - 1))
    selected = jnp.where(is_local, x[jnp.clip(local, 0, x.shape[0] - 1)], 0)
    return jax.lax.psum(selected, axis_name)


def device_mean(tree: Any, axis_name: str | None) -> Any:
    """Mean over the devices; `tree` itself if `axis_name` is None.

    If each device computes the loss of the global batch through `all_gather`, the mean of their
    gradients is the gradient of that loss.
    """
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)
