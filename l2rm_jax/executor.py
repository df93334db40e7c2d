"""Where parts of long work are computed: in this process, or by the workers of Ray.

A part is a call of a pure function of arrays or files. Its size depends on the data alone, so it
gives the same bytes wherever it runs, and again after a worker has died.
"""

import contextlib
import importlib.util
import mmap
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from l2rm_jax.errors import ConfigError, first_line

EXECUTORS = LOCAL, RAY = "local", "ray"
_AHEAD = 2  # parts that wait for each worker
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu"}  # of workers without a GPU of their own


class Executor(Protocol):
    """Computes parts."""

    def put(self, value: Any) -> Any:
        """Return what stands for a value in the arguments of many calls."""

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Yield what `stage` returns for each tuple of arguments, in their order.

        Calls are taken one by one, as they can be computed. With `on_gpu`, each has a GPU to itself
        where there are any.
        """


class Local:
    """Computes parts in this process, one after the other."""

    def put(self, value: Any) -> Any:
        """The value itself."""
        return value

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Compute a part when it is asked for."""
        return (stage(*arguments) for arguments in calls)


HERE = Local()


class Ray:
    """Computes parts on workers of Ray; those of a worker that dies are computed again."""

    def __init__(self, ray: Any):
        self._ray = ray
        self._most = _AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def put(self, value: Any) -> Any:
        """A reference; a worker reads the value from memory that it shares with others."""
        return self._ray.put(value)

    def map(
        self, stage: Callable, calls: Iterable[tuple], *, on_gpu: bool = False
    ) -> Iterator[Any]:
        """Keep all workers busy, and yield in order."""
        gpus = int(on_gpu and self._ray.cluster_resources().get("GPU", 0) > 0)
        environment = {"env_vars": {} if gpus else _ENVIRONMENT}
        remote = self._ray.remote(num_gpus=gpus, runtime_env=environment)(stage)
        waiting: deque = deque()
        for arguments in calls:
            waiting.append(remote.remote(*arguments))
            if len(waiting) == self._most:
                yield self._result(waiting.popleft())
        while waiting:
            yield self._result(waiting.popleft())

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None


class Place(NamedTuple):
    """Where parts are computed.

    Attributes:
      executor: `local` or `ray`.
      address: of a cluster of Ray, or `auto`; "" starts one on this machine. Its machines must find
        the data under the same path.
      workers: of the one that is started; 0: one for each core.
    """

    executor: str = LOCAL
    address: str = ""
    workers: int = 0

    def check(self) -> None:
        """Check what can be checked before the work begins.

        Raises:
          ConfigError: there is no such executor, Ray is not installed, or a value is of no use.
        """
        if self.executor not in EXECUTORS:
            raise ConfigError(f"--executor={self.executor}: expected {' or '.join(EXECUTORS)}")
        if self.executor == LOCAL and (self.address or self.workers):
            raise ConfigError("--ray_address, --workers: found without --executor=ray")
        if self.address and self.workers:
            raise ConfigError(
                f"--workers={self.workers}: found with --ray_address={self.address}, which has its "
                "own workers"
            )
        if self.workers < 0:
            raise ConfigError(f"--workers={self.workers}: expected at least 1")
        if self.executor == RAY and not importlib.util.find_spec("ray"):
            raise ConfigError(
                "--executor=ray: needs Ray, which is missing", hint="pip install 'l2rm_jax[ray]'"
            )

    @contextlib.contextmanager
    def open(self) -> Iterator[Executor]:
        """Start Ray, or reach it, where it is asked for.

        Raises:
          ConfigError: as `check`, or Ray cannot be reached.
        """
        self.check()
        if self.executor == LOCAL:
            yield HERE
            return
        ray = _started(self.address, self.workers)
        try:
            ray.util.register_serializer(np.memmap, serializer=_described, deserializer=_opened)
            yield Ray(ray)
        finally:
            ray.shutdown()


def _started(address: str, workers: int) -> Any:
    import ray

    here = {"num_cpus": workers or None, "include_dashboard": False}
    try:
        with warnings.catch_warnings():
            # JAX warns of forks; those of Ray start other programs at once.
            warnings.simplefilter("ignore", RuntimeWarning)
            ray.init(
                **({"address": address} if address else here),
                log_to_driver=False,
                logging_level="error",
            )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"--ray_address={address}: {first_line(error)}") from error
    return ray


def _described(array: np.memmap) -> tuple:
    """A memory-mapped array as its place in its file; what was cut from one, as numbers."""
    if isinstance(array.base, mmap.mmap):
        return str(array.filename), array.offset, array.dtype, array.shape, array.flags.f_contiguous
    return (np.array(array),)


def _opened(description: tuple) -> np.ndarray:
    if len(description) == 1:
        return description[0]
    name, offset, dtype, shape, is_fortran = description
    order = "F" if is_fortran and len(shape) > 1 else "C"
    return np.memmap(name, dtype, "r", offset, shape, order)
