"""Executors: run parts of long work in this process, on Ray, or in processes with one directory.

A part is a call of a pure function of arrays or files. Its size depends only on the data, so it
gives the same bytes on any executor, and again after a worker has died.

* `place` defines the interface and opens the executor that a user has chosen; `LOCAL` is this
  process.
* `workers` runs parts on Ray. `shared` splits them among processes that share a directory.

May import `errors`.
"""

from l2rm_jax.executors.place import LOCAL, Executor, Place
from l2rm_jax.executors.shared import SINGLE, Share, parse_share

__all__ = ["LOCAL", "SINGLE", "Executor", "Place", "Share", "parse_share"]
