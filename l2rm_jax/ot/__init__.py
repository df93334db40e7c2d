"""Optimal transport: masked partial Sinkhorn, and the few fixed iterations of OMIT's matching.

`partial.py` is the front door; `README.md` beside it has the mathematics. May import nothing of
the rest of the package.
"""

from l2rm_jax.ot.matching import match
from l2rm_jax.ot.partial import partial_sinkhorn
from l2rm_jax.ot.result import PartialSinkhornResult

__all__ = ["PartialSinkhornResult", "match", "partial_sinkhorn"]
