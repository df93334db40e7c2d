"""Devices, hosts, compiled programs and process memory; other packages use only this interface.

- `batch`: the arrays of a batch of pairs;
- `parallel`: maps functions over the devices, and sets the precision of matrix products;
- `hosts`: joins processes into one program;
- `programs`: compiles functions and caches the result;
- `memory`: tunes the memory allocator of a CPU process.

May import `errors` only.
"""

from l2rm_jax.devices.programs import prepare_process

__all__ = ["prepare_process"]
