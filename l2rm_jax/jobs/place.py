"""Choose an executor by the user's flags."""

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import NamedTuple

from l2rm_jax.errors import ConfigError
from l2rm_jax.jobs.executor import LOCAL, Executor
from l2rm_jax.jobs.shares import SINGLE, Share
from l2rm_jax.jobs.workers import ray_workers

EXECUTORS = ("local", "ray")


class Place(NamedTuple):
    """Choice of an executor.

    Attributes:
      executor: `local` or `ray`.
      address: address of a Ray cluster, or `auto`; "" starts Ray on this machine. All machines of
        the cluster must find the data under the same path.
      workers: number of Ray workers to start; 0: one per core.
      share: share of this process, if several processes split the work in one directory.
    """

    executor: str = EXECUTORS[0]
    address: str = ""
    workers: int = 0
    share: Share = SINGLE

    @property
    def is_ray(self) -> bool:
        """Whether Ray workers compute the parts."""
        return self.executor == "ray"

    def check(self) -> None:
        """Check what can be checked before the work begins.

        Raises:
          ConfigError: there is no such executor, Ray is not installed, or a value is invalid.
        """
        if self.executor not in EXECUTORS:
            raise ConfigError(f"--executor={self.executor}: expected {' or '.join(EXECUTORS)}")
        if not self.is_ray and (self.address or self.workers):
            raise ConfigError("--ray_address and --workers require --executor=ray")
        if self.address and self.workers:
            raise ConfigError(
                f"--workers cannot be combined with --ray_address={self.address}: the cluster has "
                "its own workers"
            )
        if self.workers < 0:
            raise ConfigError(f"--workers={self.workers}: expected at least 1")
        if self.is_ray and self.share != SINGLE:
            raise ConfigError("--executor=ray cannot be combined with --share")
        if self.is_ray and not importlib.util.find_spec("ray"):
            raise ConfigError(
                "--executor=ray: needs Ray, which is missing", hint="pip install 'l2rm_jax[ray]'"
            )

    @contextlib.contextmanager
    def open(self) -> Iterator[Executor]:
        """Open the executor: start Ray or connect to it if the user chose Ray.

        Raises:
          ConfigError: as `check`, or Ray cannot be reached.
        """
        self.check()
        if not self.is_ray:
            yield LOCAL
            return
        with ray_workers(self.address, self.workers) as executor:
            yield executor
