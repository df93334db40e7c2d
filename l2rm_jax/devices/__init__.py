"""Devices, hosts, compiled programs and process memory; other packages use only this interface.

- `parallel`: maps functions over the devices, and sets the precision of matrix products;
- `hosts`: joins processes into one program;
- `programs`: compiles functions and caches the result;
- `memory`: tunes the memory allocator of a CPU process.

May import `errors` only.
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
    "is_primary",
    "is_single_host",
    "join_hosts",
    "matmul_precision",
    "prepare_process",
]
