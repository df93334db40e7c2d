"""Memory that a process frees and needs again, as XLA does at each step."""

import os
import subprocess
import sys

import pytest

BLOCK = 2**26  # bytes; larger than what glibc ever keeps for a thread
# Prints how many pages the system hands out when a thread takes a block that another has freed: as
# it is, twice after there was room to make, and twice after there was to be more than there is.
PAGES = f"""
import resource, threading
from l2rm_jax.memory import keep_freed_memory, machine_memory, make_room

def use():
    b"1" * {BLOCK}

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
pages()
found = [pages()]
for size in (0, machine_memory()):
    make_room(size)
    found += [pages(), pages()]
print(*found)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no mallopt")
@pytest.mark.parametrize("own_settings", [False, True])
def test_freed_memory_is_used_again_unless_the_environment_says_otherwise(own_settings):
    settings = {"MALLOC_ARENA_MAX": "8"} if own_settings else {}
    known = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", PAGES]
    done = subprocess.run(command, env=known | settings, capture_output=True, check=True)
    half = BLOCK // os.sysconf("SC_PAGE_SIZE") // 2
    taken_anew = [int(pages) > half for pages in done.stdout.split()]
    assert taken_anew == [own_settings, True, own_settings, True, True]
