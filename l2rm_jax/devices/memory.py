"""Memory allocation of a CPU process: keep freed memory for reuse, unless programs are large.

XLA allocates the working memory of a program at each call. By default, glibc returns large freed
blocks to the system, which must clear them again at the next allocation.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Parameters of glibc's mallopt, numbered as in its header malloc.h.
KEEP_FREED = {
    -8: 1,  # M_ARENA_MAX: one heap for all threads, as further heaps hold no block above 64 MB
    -4: 0,  # M_MMAP_MAX: never map single blocks, which free would unmap
    -1: -1,  # M_TRIM_THRESHOLD: the heap never shrinks
}
RETURN_LARGE = {
    -3: 2**25,  # M_MMAP_THRESHOLD: map blocks from 32 MiB, the highest value glibc itself sets
    -4: 2**16,  # M_MMAP_MAX: glibc's default
}
CGROUPS = Path("/sys/fs/cgroup")  # Linux control groups and their limits
OWN_CGROUPS = Path("/proc/self/cgroup")  # control groups of this process


def keep_freed_memory() -> None:
    """Keep freed memory in this process for reuse; must be called before any device is used.

    Clearing large blocks at each allocation takes as long as a quarter of a small training step on
    a CPU. Does nothing if MALLOC_ARENA_MAX is in the environment, or with another C library.
    """
    _set(KEEP_FREED)


def release_free_memory(size: int) -> None:
    """Return free heap memory to the operating system, before a program with large arrays runs.

    If the program needs more than an eighth of `usable_memory`, large blocks are returned to the
    system when they are freed, from now on. Otherwise a small block may settle in the hole that a
    large one left, the large one no longer fits there, and the process takes up to twice the
    memory that it works with.

    Args:
      size: working memory of the program in bytes.
    """
    _glibc_function("malloc_trim")(0)
    if size > usable_memory() / 8:
        _set(RETURN_LARGE)


def usable_memory() -> int:
    """Bytes of memory that this process may use.

    That is the memory of the machine, or the lower limit of a container or a scheduler's job.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_cgroup_limits()])


def _cgroup_limits() -> Iterator[int]:
    """Memory limits in bytes of this process's control groups and their parents (v1 and v2)."""
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
            if limit.isdigit():  # "max" means no limit
                yield int(limit)


def _set(settings: dict[int, int]) -> None:
    if "MALLOC_ARENA_MAX" not in os.environ:
        for parameter, value in settings.items():
            _glibc_function("mallopt")(parameter, value)


def _glibc_function(name: str) -> Callable:
    """Look up a function of glibc; with another C library, return one that does nothing."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return getattr(library, name, lambda *_: None)
