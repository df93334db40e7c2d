"""Where parts are computed, as a user says it."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from l2rm_jax.errors import ConfigError
from l2rm_jax.executors.executor import LOCAL, Executor
from l2rm_jax.executors.shared import SINGLE, Share, Shared
from l2rm_jax.executors.workers import ray_workers

EXECUTORS = ("local", "ray")


class Place(NamedTuple):
    """Where parts are computed.

    Attributes:
      executor: `local` or `ray`.
      address: of a cluster of Ray, or `auto`; "" starts one on this machine. Its machines must find
        the data under the same path.
      workers: of the one that is started; 0: one for each core.
      share: of this process, if several do the same work and share a directory.
    """

    executor: str = EXECUTORS[0]
    address: str = ""
    workers: int = 0
    share: Share = SINGLE

    @property
    def is_ray(self) -> bool:
        """Whether workers of Ray compute the parts."""
        return self.executor == "ray"

    def check(self) -> None:
        """Check what can be checked before the work begins.

        Raises:
          ConfigError: there is no such executor, Ray is not installed, or a value is of no use.
        """
        if self.executor not in EXECUTORS:
            raise ConfigError(f"--executor={self.executor}: expected {' or '.join(EXECUTORS)}")
        if not self.is_ray and (self.address or self.workers):
            raise ConfigError("--ray_address and --workers require --executor=ray")
        if self.address and self.workers:
            raise ConfigError(
                f"--workers={self.workers}: found with --ray_address={self.address}, which has its "
                "own workers"
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
    def open(self, directory: Path | None = None) -> Iterator[Executor]:
        """Start Ray, or reach it, where it is asked for.

        Args:
          directory: for the results of parts, which processes with shares need.

        Raises:
          ConfigError: as `check`, or Ray cannot be reached.
        """
        self.check()
        if not self.is_ray:
            yield LOCAL if self.share == SINGLE else Shared(directory, self.share)
            return
        with ray_workers(self.address, self.workers) as executor:
            yield executor
