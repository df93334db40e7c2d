"""Optimal transport: masked partial Sinkhorn, and the few-iteration matching of OMIT.

Start reading at `partial.py`; `README.md` in this folder explains the mathematics. May import
nothing from the rest of l2rm_jax.
"""

from l2rm_jax.ot.matching import match
from l2rm_jax.ot.partial import partial_sinkhorn
from l2rm_jax.ot.result import PartialSinkhornResult
from l2rm_jax.ot.vectors import PlanOfVectors, partial_sinkhorn_of

__all__ = [
    "PartialSinkhornResult",
    "PlanOfVectors",
    "match",
    "partial_sinkhorn",
    "partial_sinkhorn_of",
]
