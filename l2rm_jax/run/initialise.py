"""Open a run, and set the state that a run or an epoch starts from."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.data.loading import save_vocabulary_and_index
from l2rm_jax.data.record import keep_record
from l2rm_jax.data.train_pairs import Data
from l2rm_jax.devices.hosts import exit_on_host_failure, is_primary, require_shared_directory
from l2rm_jax.devices.parallel import Replicas, matmul_precision
from l2rm_jax.methods.base import BEST, LAST, EpochPlan
from l2rm_jax.methods.closed_form import START
from l2rm_jax.run.checkpoints import RunCheckpoints
from l2rm_jax.run.config_file import (
    check_data_directory,
    check_workdir,
    lock_workdir,
    read_config,
    with_changes,
    write_config,
)
from l2rm_jax.run.memory import resident_images
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
    check_data_directory(workdir, config, mode)
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


@contextlib.contextmanager
def open_workdir(config: ConfigDict, data: Data, workdir: str | Path) -> Iterator[str | None]:
    """Lock the work directory of a run, and write the files by which `--workdir` resumes it.

    Yields:
      As `check_workdir` returns, which is called again, as another run may have used the directory
      meanwhile; None on all hosts but host 0, which neither lock nor write.

    Raises:
      ConfigError: another process trains there, or the directory has another run.
    """
    if not is_primary():
        yield None
        return
    Path(workdir).mkdir(parents=True, exist_ok=True)
    with lock_workdir(workdir):
        change = check_workdir(workdir, config)
        write_config(workdir, config)
        save_vocabulary_and_index(data, workdir)
        keep_record(config.data.path, workdir)
        yield change


def begin_epoch(run: Run, epoch: int) -> None:
    """Start an epoch (counted from 0) and its clock, or continue one that was stopped.

    Raises:
      DataError: the images stay on the devices, and a feature is not finite.
      CheckpointError: it begins with the best model, which is not there or cannot be restored.
    """
    if run.plan is None:  # the epoch has not begun
        _take_networks(run, run.method.begin(epoch), epoch)
    run.state = run.state.replace(epoch=run.replicas.replicate(np.int32(epoch)))
    run.position.setdefault("epoch_start", run.seconds)
    if run.resident is None and run.method.plan is not None:
        run.resident = resident_images(run.data.train.images, run.replicas)


def _take_networks(run: Run, start: str, epoch: int) -> None:
    """Take networks and optimiser from elsewhere; `start` is what `Method.begin` returns."""
    if start == LAST:
        return
    if start == BEST:
        other = run.best_state()
    else:
        other = run.initial_state(jax.random.fold_in(jax.random.key(run.config.seed), epoch))
        if run.method.fit:  # an optimiser as at first, whatever the state that was fitted from
            other = run.fits[START][0].replace(opt_state=other.opt_state)
    names = ("params", "batch_stats", "opt_state")
    parts = {name: run.replicas.replicate(getattr(other, name)) for name in names}
    run.state = run.state.replace(**parts)


def start_from_fit(run: Run) -> tuple[float, float]:
    """Start from the fit `START`; the best one on the validation split is the best so far.

    Returns:
      The validation rSum of the start, and of the best fit.

    Raises:
      ConfigError: the hosts fitted different models.
    """
    rsums = []
    for state, _ in run.fits:
        run.state = run.replicas.replicate(state)
        rsums.append(run.validate()["rsum"])
    best, start = (run.replicas.replicate(run.fits[i][0]) for i in (int(np.argmax(rsums)), START))
    run.checkpoints.save_best(run.step, best)
    run.position["best_rsum"] = max(rsums)
    run.state = start
    run.save()
    return rsums[START], max(rsums)


def take_fit(run: Run, epoch: int) -> None:
    """Take the fit that is an epoch (counted from 0) of a method in closed form.

    Raises:
      ConfigError: the hosts fitted different models.
    """
    state, report = run.fits[epoch]
    state = state.replace(step=np.int32(epoch + 1), epoch=np.int32(epoch))
    run.state = run.replicas.replicate(state)
    run.plan = EpochPlan({"pairs": np.flatnonzero(run.data.train.paired)}, report)
