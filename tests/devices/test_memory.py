"""Memory that a process frees and allocates again, as XLA does at each step."""

import os
import subprocess
import sys

import pytest

from l2rm_jax.devices import memory

BLOCK = 2**26  # bytes; more than glibc ever keeps for a thread
# Prints how many pages the system provides when a thread allocates a block that another thread has
# freed: once at first, twice after releasing memory for a small program, twice after releasing it
# for a program larger than the memory, and then once for a block that is not large.
PAGES = f"""
import resource, threading
from l2rm_jax.devices.memory import keep_freed_memory, usable_memory, release_free_memory

def use(size):
    b"1" * size

def pages(size={BLOCK}):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=use, args=(size,))
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
pages()
counts = [pages()]
for size in (0, usable_memory()):
    release_free_memory(size)
    counts += [pages(), pages()]
pages({BLOCK} // 4)
print(*counts, pages({BLOCK} // 4))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no mallopt")
@pytest.mark.parametrize("own_settings", [False, True])
def test_freed_memory_is_reused_unless_the_environment_sets_malloc(own_settings):
    settings = {"MALLOC_ARENA_MAX": "8"} if own_settings else {}
    known = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", PAGES]
    done = subprocess.run(command, env=known | settings, capture_output=True, check=True)
    half = BLOCK // os.sysconf("SC_PAGE_SIZE") // 2
    *large, smaller = map(int, done.stdout.split())
    assert [pages > half for pages in large] == [own_settings, True, own_settings, True, True]
    assert own_settings or smaller < half // 4


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/job/step", {"job/memory.max": "7000", "job/step/memory.max": "max"}, 7000),
        ("0::/job/step", {"job/memory.max": "7000", "job/step/memory.max": "5000"}, 5000),
        ("0::/", {"memory.max": "6000"}, 6000),
        ("3:cpu,cpuacct:/a\n4:memory:/a\n0::/a", {"memory/a/memory.limit_in_bytes": "9000"}, 9000),
        ("4:memory:/", {"memory/memory.limit_in_bytes": str(2**63 - 4096)}, None),
        ("0::/job", {"other/memory.max": "5000", "job/memory.max": "max"}, None),
        ("", {}, None),
        (None, {}, None),
    ],
)
def test_usable_memory_respects_the_limits_of_containers_and_jobs(
    own, files, limit, tmp_path, monkeypatch
):
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "OWN_CGROUPS", tmp_path / "own")
    if own is not None:
        (tmp_path / "own").write_text(own)
    for name, value in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory.usable_memory() == (limit or machine)
