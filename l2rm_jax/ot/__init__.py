"""Optimal transport: masked partial Sinkhorn."""

from l2rm_jax.ot.partial import partial_sinkhorn
from l2rm_jax.ot.result import PartialSinkhornResult

__all__ = ["PartialSinkhornResult", "partial_sinkhorn"]
