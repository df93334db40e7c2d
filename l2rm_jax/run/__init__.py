"""A run: its work directory, and everything that a resumed run needs.

`run` holds the run in progress, `inputs` and `fields` check its config and data, `config_file`,
`log`, `results` and `checkpoints` are the files of its directory, `lock` and `stop_signal` protect
them, and `health` warns when nothing is learned. May import methods, evaluation and all to their
right (see `l2rm_jax/README.md`); the training loop itself is `l2rm_jax/train.py`.
"""

from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.config_file import check_workdir, read_config, write_config
from l2rm_jax.run.inputs import check_settings, read_data
from l2rm_jax.run.log import RunLog
from l2rm_jax.run.run import Run, open_run

__all__ = [
    "Run",
    "RunCheckpoints",
    "RunLog",
    "check_workdir",
    "check_settings",
    "open_run",
    "read_config",
    "read_data",
    "write_config",
]
