"""Long work that can be stopped, resumed and shared: locks, parts, and atomic writes.

A part is a call of a pure function of arrays or files. Its size depends only on the data, so it
gives the same bytes on any executor, and again after a worker has died.

* `job` has the life of work on a directory: lock, claim, parts, finish. `locks` keeps other
  processes out of it. `files` writes files and directories that appear when they are complete, and
  `full_disk` names the file that found no room. `regular_files` reads whole files, no devices.
* `executor` computes parts in this process, `workers` on Ray; `place` opens the choice of the user.
  `stored` keeps the results of arrays, and splits the parts among the processes of `shares`.

May import `errors`.
"""

from l2rm_jax.jobs.executor import LOCAL, Executor, Later
from l2rm_jax.jobs.job import Job
from l2rm_jax.jobs.place import Place
from l2rm_jax.jobs.shares import SINGLE, Share, parse_share
from l2rm_jax.jobs.stored import Stored

__all__ = [
    "LOCAL",
    "SINGLE",
    "Executor",
    "Job",
    "Later",
    "Place",
    "Share",
    "Stored",
    "parse_share",
]
