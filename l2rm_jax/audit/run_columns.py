"""Read columns about the training pairs from a run: dropped pairs, and its last split by loss."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped
from ml_collections import ConfigDict

from l2rm_jax.data import filters
from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.judging import Judgement, read_judgement
from l2rm_jax.methods.base import CALLED_MATCHED
from l2rm_jax.run.judgement import (
    kept_by_judgement,
    last_judgement,
    last_split,
    of_training_pairs,
    uses_judgement,
)
from l2rm_jax.run.load_trained import read_trained

MATCHED, MISMATCHED = "matched", "mismatched"


class OfRun(NamedTuple):
    """Columns from a run for each pair of its training split.

    Attributes:
      dropped: "filter" for a pair that the run does not train on, else "".
      loss: loss in the last split by loss; NaN without such a split.
      loss_posterior: probability of a mismatch by that split; NaN likewise.
      called: last label of the pair by the method: `MATCHED`, `MISMATCHED`, or "" without a split.
    """

    dropped: Shaped[np.ndarray, " pairs"]
    loss: Float[np.ndarray, " pairs"]
    loss_posterior: Float[np.ndarray, " pairs"]
    called: Shaped[np.ndarray, " pairs"]


def read_of_run(
    config: ConfigDict, train: TrainPairs, judgement: Judgement, workdir: str | Path
) -> OfRun:
    """Read the columns of a run about its training pairs.

    Args:
      config: config of the run.
      train: its training pairs, without any filter.
      judgement: judgement of these pairs.
      workdir: its work directory.

    Raises:
      CheckpointError: the run has not finished an epoch.
      DataError: a file is damaged, or belongs to other pairs.
    """
    trained, _ = filters.kept_pairs(config.data, train.matched, train.drawn)
    own, file = judgement.posterior, last_judgement(workdir)
    if train.drawn is not None and uses_judgement(config) and file.exists():
        # It may have judged all pairs of the data, from which the run has drawn these.
        own = of_training_pairs(read_judgement(file), train, file)
    if config.data.filter == "judgement":
        trained = kept_by_judgement(config.data, own)
    dropped, called = np.full(len(train), "filter", object), np.full(len(train), "", object)
    dropped[trained] = ""
    loss, posterior = np.full((2, len(train)), np.nan)
    by_loss = config.split.by == "loss"
    kept = last_split(workdir, train.stored_image[trained]) if by_loss else None
    flags = _flags(config, workdir)
    if kept is not None:
        loss[trained], posterior[trained] = kept.loss, kept.mismatched_posterior
        flags = kept.called_matched
    elif not by_loss and uses_judgement(config):
        flags = own[trained] <= SUSPICIOUS
    if flags is not None:
        called[trained] = np.where(flags, MATCHED, MISMATCHED)
    return OfRun(dropped, loss, posterior, called)


def _flags(config: ConfigDict, workdir: str | Path) -> Bool[np.ndarray, " trained"] | None:
    """Return whether the last epoch called each pair matched, from `Method.pair_values`.

    With several networks, at least half must agree. None in the warm-up, and for methods that do
    not store these flags.
    """
    state = read_trained(workdir, "last").state
    flags = ((state.own or {}).get("pairs") or {}).get(CALLED_MATCHED)
    if flags is None or int(state.epoch) < config.train.warmup_epochs:
        return None
    return np.atleast_2d(flags).mean(axis=0) >= 0.5
