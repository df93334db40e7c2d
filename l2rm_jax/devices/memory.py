"""The memory of a process on a CPU: what it frees is kept, unless a program takes too much."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Parameters of glibc's mallopt, by its header's numbers.
KEPT = {
    -8: 1,  # M_ARENA_MAX: one heap for all threads; further ones hold no block above 64 MB
    -4: 0,  # M_MMAP_MAX: no block comes from the system directly, to go back there when freed
    -1: -1,  # M_TRIM_THRESHOLD: the heap never shrinks
}
GIVEN_BACK = {
    -3: 2**25,  # M_MMAP_THRESHOLD: blocks from 32 MiB, as high as glibc goes by itself
    -4: 2**16,  # M_MMAP_MAX, glibc's default
}
CGROUPS = Path("/sys/fs/cgroup")  # Linux's groups of processes, and the limits of each
OWN_CGROUPS = Path("/proc/self/cgroup")


def keep_freed_memory() -> None:
    """Keeps what this process frees for what it needs next; before anything touches a device.

    XLA takes the memory of a step anew each time. By default, glibc has the system clear a large
    block at each request, which takes as long as a quarter of a small step on a CPU. With
    MALLOC_ARENA_MAX in the environment, or another C library, nothing changes.
    """
    _set(KEPT)


def release_free_memory(size: int) -> None:
    """Before a program runs that works with `size` bytes: gives what is free to the system.

    Where `size` is more than an eighth of `usable_memory`, large blocks come from the system
    from now on, and go back there, unless a hole of the heap holds them: kept, such a block may be
    needed again when a small one lies in the hole that it has left, and a process takes twice what
    it works with.
    """
    _of_glibc("malloc_trim")(0)
    if size > usable_memory() / 8:
        _set(GIVEN_BACK)


def usable_memory() -> int:
    """Bytes that this process may hold: the machine's memory, or less where a container or a
    scheduler's job has a limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits()])


def _limits() -> Iterator[int]:
    """Of this process's cgroup and of those around it, by either version of cgroups."""
    own = OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else []
    for _, controllers, path in (line.split(":", 2) for line in own):
        if not controllers:
            root, name = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for file in (directory / name for directory in (group, *group.parents)):
            limit = file.read_text().strip() if file.exists() else ""
            if limit.isdigit():  # "max" where there is none
                yield int(limit)


def _set(settings: dict[int, int]) -> None:
    if "MALLOC_ARENA_MAX" not in os.environ:
        for parameter, value in settings.items():
            _of_glibc("mallopt")(parameter, value)


def _of_glibc(name: str) -> Callable:
    """One of glibc's own functions; other C libraries have none that does anything."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return getattr(library, name, lambda *_: None)
