"""PyTorch checkpoints published by the authors of L2RM and related methods.

`checkpoint` reads a file without executing anything in it, and `conversion` converts its weights
to Flax parameters. May import `run` and all to its right.
"""

from l2rm_jax.published.checkpoint import read_checkpoint, read_trained_vocabulary, weights_for_data
from l2rm_jax.published.conversion import model_from_state_dict, variables_from_state_dict

__all__ = [
    "model_from_state_dict",
    "read_checkpoint",
    "read_trained_vocabulary",
    "variables_from_state_dict",
    "weights_for_data",
]
