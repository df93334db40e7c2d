"""Long work that can be stopped, resumed and shared: locks, parts, and atomic writes.

A part is a call of a pure function of arrays or files. Its size depends only on the data, so it
gives the same bytes on any executor, and again after a worker has died.

* `job` has the life of such work: lock, claim, parts, finish. `locks` keeps other processes out of
  a directory. `files` writes files and directories that appear when they are complete.
* `place` defines the interface of an executor and opens the choice of the user; `LOCAL` is
  this process. `workers` runs parts on Ray. `shares` splits them among processes that share a
  directory.

May import `errors`.
"""

from l2rm_jax.jobs.job import Job
from l2rm_jax.jobs.place import LOCAL, Executor, Place
from l2rm_jax.jobs.shares import SINGLE, Share, parse_share

__all__ = ["LOCAL", "SINGLE", "Executor", "Job", "Place", "Share", "parse_share"]
