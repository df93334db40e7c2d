"""What a run keeps of its training pairs: which it trains on, its last split, its judgement."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from ml_collections import ConfigDict

from l2rm_jax.crossfit import Judgement
from l2rm_jax.data import filters
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.methods import LossSplit
from l2rm_jax.methods.decl import CALLED_MATCHED
from l2rm_jax.methods.split import THRESHOLD
from l2rm_jax.run.judgement import last_judgement, pairs_outside_fold, uses_crossfit
from l2rm_jax.run.loss_split import last_split
from l2rm_jax.run.trained import read_trained

MATCHED, MISMATCHED = "matched", "mismatched"


class Kept(NamedTuple):
    """What a run keeps of its training pairs; rows are those of the training split.

    Attributes:
      dropped: [pairs] "filter" or "held_out" for a pair that the run does not train on, else "".
      trained: rows of the pairs that it trains on.
      split: the last split by loss, of those pairs; None if there was none.
      judged: rows of the pairs that cross-fitting judged.
      judgement: what it says of them; None without cross-fitting.
      fold: the fold of each of them.
    """

    dropped: Shaped[np.ndarray, " pairs"]
    trained: Int[np.ndarray, " trained"]
    split: LossSplit | None
    judged: Int[np.ndarray, " judged"]
    judgement: Judgement | None
    fold: Int[np.ndarray, " judged"]


class Verdict(NamedTuple):
    """What the run says of each pair.

    Attributes:
      mismatched_posterior: probability that the pair is mismatched, where one is known.
      judged_by: where it comes from: "loss", "crossfit", or "" where none is known.
      called: what the split calls the pair: `MATCHED`, `MISMATCHED`, or "" if there is no split.
    """

    mismatched_posterior: Float[np.ndarray, " pairs"]
    judged_by: Shaped[np.ndarray, " pairs"]
    called: Shaped[np.ndarray, " pairs"]


def read_kept(config: ConfigDict, train: PairDataset, workdir: str | Path) -> Kept:
    """Read what the run in `workdir` keeps of its training pairs.

    Args:
      config: config of the run.
      train: its training pairs, none of them filtered or left out.
      workdir: its work directory.

    Raises:
      DataError: a file is missing or damaged, or of other pairs.
    """
    dropped = np.full(len(train), "filter", object)
    rows = filters.kept_pairs(config.data, train.matched)
    outside = rows[pairs_outside_fold(config.split, train.take(rows))]
    dropped[rows] = "held_out"
    trained, judged, judgement, fold = outside, outside[:0], None, outside[:0]
    if uses_crossfit(config):
        judged = outside
        judgement, fold = last_judgement(config, train.take(judged), workdir)
        if config.data.filter == "crossfit":
            dropped[judged] = "filter"
            trained = judged[judgement.posterior > config.data.filter_value]
    dropped[trained] = ""
    split = None
    if config.split.by == "loss":
        split = last_split(workdir, train.stored_image[trained])
    return Kept(dropped, trained, split and split.split, judged, judgement, fold)


def read_flags(config: ConfigDict, workdir: str | Path) -> Bool[np.ndarray, " trained"] | None:
    """Read which pairs the last epoch called matched, of a method that keeps this in its state.

    That is `decl`, which calls pairs matched without a posterior. Of several networks, half or more
    must agree.

    Args:
      config: config of the run.
      workdir: its work directory, with a checkpoint.

    Returns:
      A flag for each pair that the run trains on; None for other methods and in the warm-up.

    Raises:
      CheckpointError: the newest checkpoint cannot be read.
    """
    state = read_trained(workdir, "last").state
    flags = ((state.own or {}).get("pairs") or {}).get(CALLED_MATCHED)
    if flags is None or int(state.epoch) < config.train.warmup_epochs:
        return None
    return np.atleast_2d(flags).mean(axis=0) >= 0.5


def give_verdict(
    kept: Kept, splits_by_crossfit: bool, flags: Bool[np.ndarray, " trained"] | None = None
) -> Verdict:
    """Say of each pair what its last split says, or else cross-fitting.

    Args:
      kept: what the run keeps.
      splits_by_crossfit: whether the method splits the pairs by cross-fitting.
      flags: what `read_flags` returns.
    """
    pairs = len(kept.dropped)
    posterior, judged_by = np.zeros(pairs), np.full(pairs, "", object)
    called = np.full(pairs, "", object)
    if kept.judgement is not None:
        posterior[kept.judged], judged_by[kept.judged] = 1 - kept.judgement.posterior, "crossfit"
        if splits_by_crossfit:
            doubtful = posterior[kept.trained] > THRESHOLD
            called[kept.trained] = np.where(doubtful, MISMATCHED, MATCHED)
    if flags is not None:
        called[kept.trained] = np.where(flags, MATCHED, MISMATCHED)
    if kept.split is not None:
        posterior[kept.trained] = kept.split.mismatched_posterior
        judged_by[kept.trained] = "loss"
        called[kept.trained] = np.where(kept.split.called_matched, MATCHED, MISMATCHED)
    return Verdict(posterior, judged_by, called)
