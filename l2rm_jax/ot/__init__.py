"""Optimal transport: masked partial Sinkhorn."""

from l2rm_jax.ot.partial import PartialSinkhornResult, partial_sinkhorn

__all__ = ["PartialSinkhornResult", "partial_sinkhorn"]
