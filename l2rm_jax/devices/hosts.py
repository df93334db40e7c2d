"""Hosts: processes with devices of their own, which run the same program as one."""

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from l2rm_jax.errors import ConfigError

_log = logging.getLogger(__name__)

# Hosts may be started by hand, or where a cluster has room for them.
JOIN_SECONDS = 300
# A host that is killed is missed, and the others stopped, after so long without a sign of life.
HEARTBEAT_SECONDS = 30
# At its end, a host waits so long for the others to end too.
SHUTDOWN_SECONDS = 60
# In the first line of a device's error where it has no memory left.
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
# A file system between hosts may show for some time what a directory held before.
DIRECTORY_SECONDS = 60


class Share(NamedTuple):
    """The part of a global batch that a host reads: of `hosts` equal ones in a row, one."""

    host: int = 0
    hosts: int = 1

    def take(self, rows: np.ndarray) -> np.ndarray:
        size = len(rows) // self.hosts
        return rows[self.host * size : (self.host + 1) * size]


def require_shared_directory(directory: Path) -> None:
    """Stops a host that does not see the directory that the first one has made.

    Raises:
      ConfigError: it is not there, and does not come.
    """
    limit = time.monotonic() + DIRECTORY_SECONDS
    while not directory.is_dir():
        if time.monotonic() > limit:
            raise ConfigError(
                f"{directory}: made by host 0 and not seen by host {jax.process_index()}; expected "
                "a work directory that all hosts share"
            )
        time.sleep(1)


def join_hosts(coordinator: str, hosts: int | None, host: int | None) -> None:
    """Makes this process one of several hosts; before anything touches a device.

    Args:
      coordinator: address and port of host 0, or "auto" to find all three in the environment of
        the cluster.
      hosts: how many there are.
      host: which one this is, 0 to hosts - 1.

    Raises:
      ConfigError: something is missing, or contradicts the rest; or host 0 does not answer.
    """
    given = hosts is not None, host is not None
    if coordinator == "auto":
        if any(given):
            raise ConfigError("--hosts, --host: --coordinator=auto finds them by itself")
        address = None
    else:
        if not all(given) or not re.fullmatch(r".+:\d+", coordinator):
            raise ConfigError(
                f"--coordinator={coordinator}: expected ADDRESS:PORT of host 0, with --hosts and "
                "--host; or auto, without"
            )
        if not 0 <= host < hosts:
            raise ConfigError(f"--host: {host}, expected 0 to {hosts - 1}")
        address = coordinator
    _log.info("waiting for the other hosts, at most %d s", JOIN_SECONDS)
    # It would take SIGTERM from `StopSignal`.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            address,
            hosts,
            host,
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"--coordinator={coordinator}: {error}") from error


def exit_with_error(message: str) -> NoReturn:
    """Ends this process in error; one of several hosts at once.

    An orderly exit would wait for the others, which may be no more, or wait for this one. They
    notice that it is gone, in `exit_on_host_failure` or after `HEARTBEAT_SECONDS`.
    """
    if not jax.distributed.is_initialized():
        sys.exit(message)
    exit_now(message, 1)


def exit_now(message: str, status: int) -> NoReturn:
    """Ends this process at once, without threads that still work: on a compilation, for example."""
    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(status)


def describe_error(error: jax.errors.JaxRuntimeError) -> str:
    """The first line of a device's error; where its memory did not suffice, also what to try."""
    first = str(error).splitlines()[0]
    if OUT_OF_MEMORY not in str(error):
        return first
    return (
        f"{first}; a smaller train.batch_size, evaluation.batch_size or model.chunk (captions "
        "scored at once) takes less, or more devices share the batch"
    )


@contextlib.contextmanager
def exit_on_host_failure() -> Iterator[None]:
    """A block in which hosts meet. Where another one is gone, this one ends too."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not jax.distributed.is_initialized():
            raise
        exit_with_error(
            f"error: host {jax.process_index()} stops ({describe_error(error)}). If another "
            "one stopped first, its output says why. Started again with the same commands, all "
            "continue from the newest checkpoint"
        )


def is_single_host() -> bool:
    """Whether this process is all there is."""
    return jax.process_count() == 1


def on_any_host(value: bool) -> bool:
    """Whether the value is True on one of the hosts, all of which must ask."""
    return (
        value
        if is_single_host()
        else bool(multihost_utils.process_allgather(np.array(value)).any())
    )


def is_primary() -> bool:
    """Whether this host writes and prints; all others keep quiet."""
    return jax.process_index() == 0


def usable_cores() -> int:
    """Of the machine's cores, how many this process may use, where the system says so."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1
