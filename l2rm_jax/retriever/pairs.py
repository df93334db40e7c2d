"""List the training pairs of a run with all that the run knows of each: `l2rm pairs`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.data.files import new_file
from l2rm_jax.data.ids import read_ids
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.base import pair_losses
from l2rm_jax.methods.networks import scores_of_networks
from l2rm_jax.retriever.pairs_kept import MISMATCHED, Kept, give_verdict, read_flags, read_kept
from l2rm_jax.retriever.pairs_proposals import propose
from l2rm_jax.retriever.pairs_table import Column, check_ending, write_table
from l2rm_jax.run import Run
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.inputs import check_settings, load_run_data
from l2rm_jax.run.opening import open_run, read_trained_config
from l2rm_jax.run.trained import find_checkpoint, read_trained

_CHANGEABLE = ("data.path", "model.chunk", "evaluation.batch_size")
_ALL_PAIRS = {  # neither filtered nor left out
    "data.filter": "none",
    "data.filter_scores": "",
    "data.filter_value": 0.0,
    "split.held_out": -1,
}


def list_pairs(
    workdir: str | Path, out: str | Path, changes: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Write a table of all training pairs of a run; nothing in the work directory changes.

    Losses are those of the last split, or of the best model if the pairs are not split by loss. The
    best model also proposes captions, if the method is `l2rm` (see `pairs_proposals`).

    Args:
      workdir: work directory of a run, finished or stopped after its first epoch.
      out: the file, which may not exist; its name ends in .csv or .parquet.
      changes: config keys with values that replace the run's own: where the data are now
        (`data.path`), and numbers of what is scored at once.

    Returns:
      A line about what was written.

    Raises:
      ConfigError: the directory holds no run, or `out` or a change is invalid.
      CheckpointError: the run has not finished an epoch.
      DataError: the data, or what the run keeps of them, cannot be read.
    """
    out = Path(out)
    check_ending(out)
    for key in changes:
        if key not in _CHANGEABLE:
            raise ConfigError(
                f"config.{key}: the pairs of a run are listed with the config that it was trained "
                f"with; only {', '.join(_CHANGEABLE)} can be changed"
            )
    config = read_trained_config(workdir, changes, "pairs")
    find_checkpoint(workdir)  # an error at once if there is none
    with new_file(out) as unfinished:
        columns = pair_columns(config, workdir)
        write_table(unfinished, out.suffix, columns)
    return f"{out}: {_counts(columns)}"


def pair_columns(config: ConfigDict, workdir: str | Path) -> dict[str, Column]:
    """The columns of the table, in the order of the data; errors as `list_pairs`."""
    check_settings(config)
    data = load_run_data(with_changes(config, _ALL_PAIRS), workdir)
    train, replicas = data.train, Replicas()
    replicas.check_batch(config.train.batch_size)
    kept = read_kept(config, train, workdir)
    with open_run(config, data, workdir, replicas) as run:
        # Not `run.restore_best`: the state may have numbers of each pair that the run trains on,
        # and these are all pairs.
        run.state = replicas.replicate(read_trained(workdir).state)
        splits_by_crossfit = run.method.splits and config.split.by == "crossfit"
        verdict = give_verdict(kept, splits_by_crossfit, read_flags(config, workdir))
        loss = _losses(run, kept)
        doubted = np.flatnonzero(verdict.called == MISMATCHED)
        is_rematched = config.method == "l2rm" and run.method.networks == 1 and len(doubted)
        caption, share = propose(run, train, doubted) if is_rematched else _nothing(len(train))
    is_judged = np.isin(np.arange(len(train)), kept.judged)
    is_proposed, is_known = caption >= 0, np.full(len(train), not train.matched.all())
    proposed = [train.captions[row] if row >= 0 else "" for row in caption]
    return {
        **_names(config.data, train),
        "loss": loss,
        "mismatched_posterior": Column(verdict.mismatched_posterior, verdict.judged_by != ""),
        "judged_by": _text(verdict.judged_by),
        "called": _text(verdict.called),
        "dropped": _text(kept.dropped),
        "fold": _spread(kept.fold, kept.judged, is_judged),
        **_judgement(kept, is_judged),
        "mismatched_on_purpose": Column(~train.matched, is_known),
        "proposed_row": Column(caption, is_proposed),
        "proposed_caption": Column(np.array(proposed, object), is_proposed),
        "proposed_share": Column(share, is_proposed),
    }


def _losses(run: Run, kept: Kept) -> Column:
    """The losses of the last split, which has none of a dropped pair; else of the best model."""
    pairs = len(run.data.train)
    if kept.split is not None:
        is_trained = np.isin(np.arange(pairs), kept.trained)
        return _spread(kept.split.loss, kept.trained, is_trained)
    score = partial(pair_losses, run.model, run.config.loss.margin)
    losses = scores_of_networks(score, run.method.networks)
    mean = run.score_pairs(0)(lambda state, batch: losses(state, batch).mean(axis=0))
    return Column(mean, np.ones(pairs, bool))


def _nothing(pairs: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(pairs, -1), np.zeros(pairs)


def _names(data_config: ConfigDict, train: PairDataset) -> dict[str, Column]:
    """Rows, ids and captions: which pair is which."""
    images, captions = read_ids(data_config, train)
    everywhere, nowhere = np.ones(len(train), bool), np.zeros(len(train), bool)
    empty = Column(np.full(len(train), "", object), nowhere)
    stored = train.stored_image
    return {
        "row": Column(np.arange(len(train)), everywhere),
        "image_row": Column(stored, everywhere),
        "image_id": empty if images is None else _text(np.array(images, object)[stored]),
        "caption_id": empty if captions is None else _text(np.array(captions, object)),
        "caption": Column(np.array(train.captions, object), everywhere),
    }


def _judgement(kept: Kept, is_judged: np.ndarray) -> dict[str, Column]:
    information, level = np.zeros(len(kept.judged)), ""
    if kept.judgement is not None:
        information, level = kept.judgement.information, kept.judgement.level
    return {
        "information": _spread(information, kept.judged, is_judged),
        "level": Column(np.full(len(is_judged), level, object), is_judged),
    }


def _spread(values: np.ndarray, rows: np.ndarray, is_known: np.ndarray) -> Column:
    """A column of values that are known of some rows alone."""
    column = np.zeros(len(is_known), values.dtype)
    column[rows] = values
    return Column(column, is_known)


def _text(values: np.ndarray) -> Column:
    """A column of text; an empty text is an empty cell."""
    return Column(values, values != "")


def _counts(columns: Mapping[str, Column]) -> str:
    """How many pairs a table has, and of what kind."""
    called, dropped = columns["called"].values, columns["dropped"].known
    parts = [f"{len(called):,} pairs"]
    if columns["called"].known.any():
        parts.append(f"{np.count_nonzero(called == MISMATCHED):,} called mismatched")
    if columns["proposed_row"].known.any():
        parts.append(f"captions proposed for {columns['proposed_row'].known.sum():,}")
    if dropped.any():
        parts.append(f"{dropped.sum():,} dropped")
    return ", ".join(parts)
