"""Run parts on Ray workers, on this machine or in a cluster."""

import contextlib
import mmap
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from l2rm_jax.errors import ConfigError, first_line
from l2rm_jax.jobs.executor import Local, values

_AHEAD = 2  # parts queued per worker
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu"}  # of workers without their own GPU


class Ray(Local):
    """Runs parts on Ray workers, and runs them again if a worker dies."""

    def __init__(self, ray: Any):
        self._ray = ray
        self._most = _AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def put(self, value: Any) -> Any:
        """Return a reference, through which workers read the value from shared memory."""
        return self._ray.put(value)

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, like: Any = 0, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Keep all workers busy, and yield the results in order."""
        gpus = int(on_gpu and self._ray.cluster_resources().get("GPU", 0) > 0)
        environment = {"env_vars": {} if gpus else _ENVIRONMENT}
        remote = self._ray.remote(num_gpus=gpus, runtime_env=environment)(stage)
        waiting: deque = deque()
        for arguments in calls:
            waiting.append(remote.remote(*values(arguments)))
            if len(waiting) == self._most:
                yield self._result(waiting.popleft())
        while waiting:
            yield self._result(waiting.popleft())

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None


@contextlib.contextmanager
def ray_workers(address: str, workers: int) -> Iterator[Ray]:
    """Start Ray on this machine, or connect to a cluster, for the duration of the block.

    Args:
      address: address of the cluster; "" starts Ray on this machine.
      workers: number of workers to start; 0: one per core.

    Raises:
      ConfigError: the cluster cannot be reached.
    """
    import ray

    here = {"num_cpus": workers or None, "include_dashboard": False}
    try:
        with warnings.catch_warnings():
            # JAX warns of forks, but Ray's forks start other programs at once.
            warnings.simplefilter("ignore", RuntimeWarning)
            ray.init(
                **({"address": address} if address else here),
                log_to_driver=False,
                logging_level="error",
            )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"--ray_address={address}: {first_line(error)}") from error
    try:
        ray.util.register_serializer(np.memmap, serializer=_described, deserializer=_opened)
        yield Ray(ray)
    finally:
        ray.shutdown()


def _described(array: np.memmap) -> tuple:
    """Describe a memory-mapped array by its place in its file, and a slice of one by values."""
    if isinstance(array.base, mmap.mmap):
        return str(array.filename), array.offset, array.dtype, array.shape, array.flags.f_contiguous
    return (np.array(array),)


def _opened(description: tuple) -> np.ndarray:
    if len(description) == 1:
        return description[0]
    name, offset, dtype, shape, is_fortran = description
    order = "F" if is_fortran and len(shape) > 1 else "C"
    return np.memmap(name, dtype, "r", offset, shape, order)
