"""PyTorch checkpoints that others have published: read, converted, continued.

`checkpoint` reads a file safely, `conversion` turns its weights into ours, `import_run` starts a
run from it. May import `run` and all to its right.
"""

from l2rm_jax.published.checkpoint import fit_data, read_checkpoint, trained_vocabulary
from l2rm_jax.published.conversion import model_from_state_dict, variables_from_state_dict
from l2rm_jax.published.import_run import import_checkpoint

__all__ = [
    "fit_data",
    "import_checkpoint",
    "model_from_state_dict",
    "read_checkpoint",
    "trained_vocabulary",
    "variables_from_state_dict",
]
