"""Memory that a process frees and needs again, as XLA does at each step."""

import os
import subprocess
import sys

import pytest

BLOCK = 2**26  # bytes; larger than what glibc ever keeps for a thread
# Prints how many pages the system hands out when a thread takes a block that another has freed, and
# when what was free has been given back.
PAGES = f"""
import resource, threading
from l2rm_jax.hosts import give_back_freed_memory, keep_freed_memory

def use():
    b"1" * {BLOCK}

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
first, second = pages(), pages()
give_back_freed_memory()
print(second, pages())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no mallopt")
@pytest.mark.parametrize("own_settings", [False, True])
def test_freed_memory_is_used_again_unless_the_environment_says_otherwise(own_settings):
    settings = {"MALLOC_ARENA_MAX": "8"} if own_settings else {}
    known = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", PAGES]
    done = subprocess.run(command, env=known | settings, capture_output=True, check=True)
    pages = BLOCK // os.sysconf("SC_PAGE_SIZE")
    again, after_giving_back = map(int, done.stdout.split())
    assert (again > pages // 2) == own_settings
    assert after_giving_back > pages // 2
