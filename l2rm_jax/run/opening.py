"""Open a run, for training or for evaluation."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from l2rm_jax.data.pairs import Data
from l2rm_jax.devices.hosts import exit_on_host_failure, require_shared_directory
from l2rm_jax.devices.parallel import Replicas, matmul_precision
from l2rm_jax.errors import ConfigError
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.config_file import read_config, with_changes
from l2rm_jax.run.run import Run


def read_trained_config(workdir: str | Path, changes: Mapping[str, Any], mode: str) -> ConfigDict:
    """Read the config of a run that a mode uses, with some changes.

    Args:
      workdir: work directory of the run.
      changes: config keys with values that replace the run's own.
      mode: the mode of the command line, for the hint.

    Raises:
      ConfigError: there is no run, or no directory where its data should be.
    """
    config = with_changes(read_config(workdir), changes)
    if config.data.path and not Path(config.data.path).is_dir():
        raise ConfigError(
            f"{workdir}: its data are in {config.data.path}, where no directory is now",
            hint=f"l2rm {mode} --workdir={workdir} --data=DIR",
        )
    return config


@contextlib.contextmanager
def open_run(
    config: ConfigDict, data: Data, workdir: str | Path, replicas: Replicas
) -> Iterator[Run]:
    """Open the run in `workdir`: its model is initialised, nothing is trained or restored yet.

    Args:
      config: config of the run.
      data: the data that `read_data` loads for this config.
      workdir: work directory; on several hosts, a directory that all of them share.
      replicas: devices to train on.

    Raises:
      ConfigError: the hosts differ in config or data, or do not share the directory.
      DataError: the judgement has left fewer training pairs than a batch.
      CheckpointError: on exit, a save failed.
    """
    directory = Path(workdir) / "checkpoints"
    with matmul_precision(config.precision):
        run = Run(config, data, replicas)
        run.workdir = Path(workdir)
        # The inner context exits first: RunCheckpoints would wait for a save that a lost host never
        # finishes.
        with RunCheckpoints(directory) as run.checkpoints, exit_on_host_failure():
            require_shared_directory(directory)
            yield run
