"""Where parts of long work are computed: in this process, by Ray, or by processes with a directory.

A part is a call of a pure function of arrays or files. Its size depends on the data alone, so it
gives the same bytes wherever it runs, and again after a worker has died.

* `executor` says what computes parts; `LOCAL` is this process.
* `workers` runs parts on Ray. `shared` divides them among processes that share a directory.
* `place` opens the executor that a user asks for.

May import `errors`.
"""

from l2rm_jax.executors.executor import LOCAL, Executor
from l2rm_jax.executors.place import Place
from l2rm_jax.executors.shared import SINGLE, Share, parse_share

__all__ = ["LOCAL", "SINGLE", "Executor", "Place", "Share", "parse_share"]
