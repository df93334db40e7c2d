"""What a run says of its training pairs: which it drops, and its last split by loss."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped
from ml_collections import ConfigDict

from l2rm_jax.data import filters
from l2rm_jax.data.pairs import SUSPICIOUS, PairDataset
from l2rm_jax.judging import Judgement
from l2rm_jax.methods.base import CALLED_MATCHED
from l2rm_jax.run.judgement import kept_by_judgement, uses_judgement
from l2rm_jax.run.loss_split import last_split
from l2rm_jax.run.trained import read_trained

MATCHED, MISMATCHED = "matched", "mismatched"


class OfRun(NamedTuple):
    """What a run says of each pair of its training split.

    Attributes:
      dropped: "filter" for a pair that the run does not train on, else "".
      loss: in the model of the last split by loss; NaN where there is none.
      loss_posterior: probability that the pair is mismatched by that split; NaN likewise.
      called: what the method called the pair last: `MATCHED`, `MISMATCHED`, or "" without a split.
    """

    dropped: Shaped[np.ndarray, " pairs"]
    loss: Float[np.ndarray, " pairs"]
    loss_posterior: Float[np.ndarray, " pairs"]
    called: Shaped[np.ndarray, " pairs"]


def read_of_run(
    config: ConfigDict, train: PairDataset, judgement: Judgement, workdir: str | Path
) -> OfRun:
    """Read what a run keeps of its training pairs.

    Args:
      config: config of the run.
      train: its training pairs, none of them filtered.
      judgement: of these pairs.
      workdir: its work directory.

    Raises:
      CheckpointError: the run has not finished an epoch.
      DataError: a file is damaged, or of other pairs.
    """
    trained = filters.kept_pairs(config.data, train.matched)
    if config.data.filter == "crossfit":
        trained = kept_by_judgement(config.data, judgement.posterior)
    dropped, called = np.full(len(train), "filter", object), np.full(len(train), "", object)
    dropped[trained] = ""
    loss, posterior = np.full((2, len(train)), np.nan)
    by_loss = config.split.by == "loss"
    kept = last_split(workdir, train.stored_image[trained]) if by_loss else None
    flags = _flags(config, workdir)
    if kept is not None:
        loss[trained], posterior[trained] = kept.split.loss, kept.split.mismatched_posterior
        flags = kept.split.called_matched
    elif not by_loss and uses_judgement(config):
        flags = judgement.posterior[trained] <= SUSPICIOUS
    if flags is not None:
        called[trained] = np.where(flags, MATCHED, MISMATCHED)
    return OfRun(dropped, loss, posterior, called)


def _flags(config: ConfigDict, workdir: str | Path) -> Bool[np.ndarray, " trained"] | None:
    """Which pairs the last epoch called matched, if the method keeps that (`Method.pair_values`).

    Of several networks, half or more must agree. None for other methods and in the warm-up.
    """
    state = read_trained(workdir, "last").state
    flags = ((state.own or {}).get("pairs") or {}).get(CALLED_MATCHED)
    if flags is None or int(state.epoch) < config.train.warmup_epochs:
        return None
    return np.atleast_2d(flags).mean(axis=0) >= 0.5
