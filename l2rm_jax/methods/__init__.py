"""Methods: how a retrieval model is learned from noisy pairs.

Each method has a file of its own, which registers it; `base` has what they share, `registry` the
table by name. Read `README.md` beside this file to choose a method or to add one. May import
models, data and all to their right.
"""

# Importing the file of a method registers it.
from l2rm_jax.methods import baseline, l2rm, rcl, rcsl  # noqa: F401
from l2rm_jax.methods.base import EpochPlan, Method, TrainState
from l2rm_jax.methods.registry import METHODS, make_method, register_method

__all__ = ["METHODS", "EpochPlan", "Method", "TrainState", "make_method", "register_method"]
