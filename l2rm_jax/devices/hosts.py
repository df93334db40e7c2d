"""Hosts: processes with their own devices that run one program together.

Every process runs the same commands. Hosts communicate in the collectives of a mapped step and in
the functions below that every host must call; a host that skips such a call blocks the others.
"""

import atexit
import contextlib
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from l2rm_jax.devices import relay
from l2rm_jax.devices.relay import LOST, parse_address
from l2rm_jax.errors import ConfigError, L2RMError

_log = logging.getLogger(__name__)

JOIN_SECONDS = 300  # wait for all hosts to start: by hand, or when a cluster has room for them
HEARTBEAT_SECONDS = 30  # without a heartbeat for this time, a host counts as lost
LOST_SECONDS = 5  # a host that sees another one leave has this time to report an error of its own
SHUTDOWN_SECONDS = 60  # wait at the end for the other hosts to finish
DIRECTORY_SECONDS = 60  # a shared file system may show a new directory this much later
_at_leaving = contextlib.ExitStack()  # what `leave_hosts` calls
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # in the message of a device that has no memory left


class Share(NamedTuple):
    """The part of a global batch that one host reads.

    Attributes:
      host: index of this host, 0 to hosts - 1.
      hosts: number of hosts; each reads an equal, contiguous part.
    """

    host: int = 0
    hosts: int = 1

    def take(self, rows: np.ndarray) -> np.ndarray:
        """This host's part of the rows of a global batch, `[B, ...]` to `[B / hosts, ...]`."""
        size = len(rows) // self.hosts
        return rows[self.host * size : (self.host + 1) * size]


def require_shared_directory(directory: Path) -> None:
    """Check that this host sees a directory created by host 0; wait up to a minute for it.

    Raises:
      ConfigError: the directory does not appear.
    """
    limit = time.monotonic() + DIRECTORY_SECONDS
    while not directory.is_dir():
        if time.monotonic() > limit:
            raise ConfigError(
                f"{directory}: created by host 0, but not visible on host {jax.process_index()}. "
                "Use a work directory on a file system that all hosts share"
            )
        time.sleep(1)


def wait_for_file(path: Path) -> None:
    """Wait without limit until this host sees a file that host 0 writes.

    If host 0 is lost meanwhile, JAX ends this process.
    """
    while not path.exists():
        time.sleep(1)


def join_hosts(coordinator: str, hosts: int | None, host: int | None) -> None:
    """Join this process to the others as one host; must be called before any device is used.

    Args:
      coordinator: `ADDRESS:PORT` of host 0, or "auto" to read all three arguments from the
        environment of the cluster.
      hosts: number of hosts; None with "auto".
      host: index of this host, 0 to hosts - 1; None with "auto".

    Raises:
      ConfigError: an argument is missing or contradicts another, or the hosts do not meet within
        `JOIN_SECONDS`.
    """
    given = hosts is not None, host is not None
    if coordinator == "auto":
        if any(given):
            raise ConfigError("--coordinator=auto cannot be combined with --hosts or --host")
        address = None
    else:
        if not all(given) or not re.fullmatch(r".+:\d+", coordinator):
            raise ConfigError(
                f"--coordinator={coordinator}: expected ADDRESS:PORT of host 0 with --hosts and "
                "--host, or auto without them"
            )
        if not 0 <= host < hosts:
            raise ConfigError(f"--host: found {host}, expected 0 to {hosts - 1}")
        address = coordinator
    _log.info("waiting for the other hosts, at most %d s", JOIN_SECONDS)
    bind_address = None
    if address is not None:
        address, bind_address = _behind_relay(address, host)
    # This service would handle SIGTERM instead of `StopSignal`.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            address,
            hosts,
            host,
            initialization_timeout=JOIN_SECONDS,
            coordinator_bind_address=bind_address,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"--coordinator={coordinator}: {error}") from error


def _behind_relay(coordinator: str, host: int) -> tuple[str, str | None]:
    """Start the relay of this host, and end this process when another host is lost.

    Returns:
      The address at which this host finds the coordinator; on host 0 also the address to which the
      coordinator listens, as its relay listens to the public one.

    Raises:
      ConfigError: the port is not free.
    """
    if host == 0:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            inner = f"127.0.0.1:{probe.getsockname()[1]}"
        ends = (f":{parse_address(coordinator)[1]}", inner)
    else:
        ends = ("127.0.0.1:0", coordinator)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", relay.__file__, *ends],
        stdin=subprocess.PIPE,  # the relay ends when this process does
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process only
    )
    port = process.stdout.readline().strip()
    if not port:
        raise ConfigError(f"--coordinator={coordinator}: {process.stderr.read().strip()}")
    leaving = threading.Event()
    _at_leaving.callback(print, "leaving", file=process.stdin, flush=True)
    _at_leaving.callback(leaving.set)  # the last one is called first
    atexit.register(_at_leaving.close)  # runs before JAX leaves at exit
    watch = (process, leaving, host)
    threading.Thread(target=_end_when_lost, args=watch, daemon=True).start()
    return (inner, inner) if host == 0 else (f"127.0.0.1:{port}", None)


def _end_when_lost(process: subprocess.Popen, leaving: threading.Event, host: int) -> None:
    """Wait until the relay says that a host is lost, and end this process unless it is leaving."""
    if process.stdout.readline().strip() == LOST and not leaving.wait(LOST_SECONDS):
        exit_now(_lost_message(host, "another host is lost"), 1)


def leave_hosts() -> None:
    """Wait until all hosts leave, and disconnect; from this call on, none counts as lost."""
    _at_leaving.close()
    jax.distributed.shutdown()


def _lost_message(host: int, what: str) -> str:
    return (
        f"error: host {host} stops ({what}). If another host stopped first, see its "
        "output. Start all hosts again with the same commands to resume from the newest checkpoint"
    )


def exit_with_error(message: str) -> NoReturn:
    """End this process with an error message and status 1.

    One of several hosts exits at once: an orderly exit would wait for the other hosts, which may
    be lost or may be waiting for this one. They notice its exit in `exit_on_host_failure`, by
    their relay, or after `HEARTBEAT_SECONDS`.
    """
    if not jax.distributed.is_initialized():
        sys.exit(message)
    exit_now(message, 1)


def exit_now(message: str, status: int) -> NoReturn:
    """End this process at once, without waiting for threads such as a running compilation."""
    # OSError: the output is closed. RuntimeError: a signal came while the stream was written to.
    with contextlib.suppress(OSError, RuntimeError):
        print(message, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError, RuntimeError):
        sys.stdout.flush()
    os._exit(status)


def describe_error(error: jax.errors.JaxRuntimeError) -> str:
    """Return the first line of a device's error, with advice if it ran out of memory."""
    first = str(error).splitlines()[0]
    if OUT_OF_MEMORY not in str(error):
        return first
    work, hints = getattr(error, "advice", (None, ["a smaller model"]))
    flags = " or ".join([*hints, "devices with more memory"])
    return f"{first.rstrip('.')}{f' while {work}' if work else ''}. Try {flags}"


def out_of_memory_error(error: jax.errors.JaxRuntimeError) -> L2RMError:
    """The error of a device without free memory as one of this library, with the best hint."""
    first = str(error).splitlines()[0].rstrip(".")
    work, hints = getattr(error, "advice", (None, []))
    return L2RMError(f"{first} while {work}" if work else first, hint=next(iter(hints), None))


@contextlib.contextmanager
def advise_on_memory(work: str, hints: Sequence[str]) -> Iterator[None]:
    """Add advice to errors of devices that run out of memory in this `with` block.

    The error is raised unchanged, with an attribute `advice` that `describe_error` and
    `out_of_memory_error` read.

    Args:
      work: name of the work in the block, such as "training".
      hints: flags that reduce its memory, the best one first.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if OUT_OF_MEMORY in str(error) and not hasattr(error, "advice"):
            error.advice = work, hints
        raise


@contextlib.contextmanager
def exit_on_host_failure() -> Iterator[None]:
    """Exit if another host is lost while this `with` block communicates with it.

    Errors of a single host are raised as usual.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not jax.distributed.is_initialized():
            raise
        exit_with_error(_lost_message(jax.process_index(), describe_error(error)))


def is_single_host() -> bool:
    """Whether this process is the only host of the program."""
    return jax.process_count() == 1


def on_any_host(value: bool) -> bool:
    """Whether the value is True on any host; every host must call this."""
    if is_single_host():
        return value
    return bool(multihost_utils.process_allgather(np.array(value)).any())


def is_primary() -> bool:
    """Whether this is the host that writes files and prints, host 0."""
    return jax.process_index() == 0


def usable_cores() -> int:
    """Number of CPU cores that this process may use; all cores if the system does not say."""
    affinity = getattr(os, "sched_getaffinity", None)  # only on Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1
