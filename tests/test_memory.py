"""Memory that a process frees and needs again, as XLA does at each step."""

import os
import subprocess
import sys

import pytest

BLOCK = 2**26  # bytes; larger than what glibc ever keeps for a thread
# Prints how many pages the system hands out when a thread takes a block that another has freed: as
# it is, twice after there was room to make, twice after there was to be more than there is, and
# then for a block that is not large.
PAGES = f"""
import resource, threading
from l2rm_jax.memory import keep_freed_memory, machine_memory, make_room

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
found = [pages()]
for size in (0, machine_memory()):
    make_room(size)
    found += [pages(), pages()]
pages({BLOCK} // 4)
print(*found, pages({BLOCK} // 4))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no mallopt")
@pytest.mark.parametrize("own_settings", [False, True])
def test_freed_memory_is_used_again_unless_the_environment_says_otherwise(own_settings):
    settings = {"MALLOC_ARENA_MAX": "8"} if own_settings else {}
    known = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", PAGES]
    done = subprocess.run(command, env=known | settings, capture_output=True, check=True)
    half = BLOCK // os.sysconf("SC_PAGE_SIZE") // 2
    *large, smaller = map(int, done.stdout.split())
    assert [pages > half for pages in large] == [own_settings, True, own_settings, True, True]
    assert own_settings or smaller < half // 4
