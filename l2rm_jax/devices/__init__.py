"""Everything that knows of devices, hosts, compiled programs and the memory of a process.

`parallel` maps functions over the devices, `hosts` joins processes into one program, `programs`
compiles and caches, `memory` tunes the allocator of a CPU process. May import `errors` alone.
"""

from l2rm_jax.devices.hosts import Share, is_primary, is_single_host, join_hosts
from l2rm_jax.devices.parallel import AXIS, PRECISIONS, Replicas, matmul_precision
from l2rm_jax.devices.programs import Program, prepare_process

__all__ = [
    "AXIS",
    "PRECISIONS",
    "Program",
    "Replicas",
    "Share",
    "is_single_host",
    "is_primary",
    "join_hosts",
    "prepare_process",
    "matmul_precision",
]
