"""Training methods: how a retrieval model learns from noisy pairs.

Each method has its own file and registers itself there. `base` holds the code that they share, and
`registry` the table of methods by name. To choose or add a method, read `README.md` in this folder.
May import `models`, `data` and everything to the right of them in the import order.
"""

# Importing a method's file registers the method.
from l2rm_jax.methods import (  # noqa: F401
    baseline,
    bicro,
    cca,
    crcl,
    cream,
    decl,
    in2r,
    l2rm,
    ncr,
    rcl,
    rcsl,
    sps,
)
from l2rm_jax.methods.base import EpochPlan, LossSplit, Method, TrainState
from l2rm_jax.methods.registry import METHODS, make_method, register_method

__all__ = [
    "METHODS",
    "EpochPlan",
    "LossSplit",
    "Method",
    "TrainState",
    "make_method",
    "register_method",
]
