"""The trained model of a run, read without the data that it was trained on."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from l2rm_jax.data.record import read_record
from l2rm_jax.data.run_words import VOCABULARY_FILE
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import CheckpointError, first_line
from l2rm_jax.jobs.regular_files import has_file
from l2rm_jax.methods.base import TrainState
from l2rm_jax.pretrained.specs import Bases
from l2rm_jax.pretrained.tokenizer import Pieces
from l2rm_jax.run.checkpoint_format import newest_checkpoint, read_checkpoint
from l2rm_jax.run.config_file import read_config
from l2rm_jax.run.exported import export, is_exported, read_exported
from l2rm_jax.run.pretrained import open_own


class Trained(NamedTuple):
    """A model that a run has trained.

    Attributes:
      config: config of the run.
      vocabulary: the words that it knows, or a pretrained tokenizer; None if it takes captions as
        vectors.
      state: the state at the checkpoint.
      epoch: number of finished epochs; 0 for a checkpoint within an epoch.
      rsum: its validation rSum; None if it was not validated (within an epoch).
      encoder: the encoder in the `dataset.json` of its data; None if they were not imported so.
      bases: its pretrained transformers; None if it has none.
    """

    config: ConfigDict
    vocabulary: Vocabulary | Pieces | None
    state: TrainState
    epoch: int
    rsum: float | None
    encoder: dict[str, Any] | None
    bases: Bases | None


def read_trained(workdir: str | Path, which: str = "best") -> Trained:
    """Read the model of the run in `workdir`, finished or not.

    Args:
      workdir: its work directory, or a directory that `save_trained` wrote.
      which: "best", the best epoch by validation, or "last", the newest checkpoint.

    Raises:
      ConfigError: there is no run.
      DataError: its copy of a pretrained encoder's files is missing or damaged.
      CheckpointError: no epoch is finished yet, or the checkpoint is damaged.
    """
    config = read_config(workdir)
    if is_exported(workdir):
        state, epoch = read_exported(workdir)
    else:
        state = read_checkpoint(find_checkpoint(workdir, which), _abstract_state)
        epoch = _epoch_record(workdir, int(state.step))
    file, bases = Path(workdir) / VOCABULARY_FILE, None
    vocabulary = Vocabulary.read(file) if file.exists() else None
    if encoders := open_own(config, workdir):
        vocabulary, bases = encoders.pieces or vocabulary, encoders.bases
    record = read_record(workdir)
    encoder = record["encoder"] if record else None
    progress = (epoch.get("epoch", 0), epoch.get("rsum"))
    return Trained(config, vocabulary, state, *progress, encoder, bases)


def save_trained(trained: Trained, workdir: str | Path, directory: str | Path) -> None:
    """Write a trained model to a new directory, which `read_trained` reads; see `exported`.

    Args:
      trained: the model.
      workdir: the directory that it was read from.
      directory: the new directory.

    Raises:
      ConfigError: the directory exists.
      DataError: safetensors is not installed.
    """
    progress = {"epoch": trained.epoch, "rsum": trained.rsum}
    export(workdir, trained.config, trained.state, progress, directory)


def find_checkpoint(workdir: str | Path, which: str = "best") -> Path:
    """Find the directory of a checkpoint of the run in `workdir`; `which` as in `read_trained`.

    Raises:
      CheckpointError: no epoch is finished yet.
    """
    directory = Path(workdir) / "checkpoints" / {"best": "best", "last": "latest"}[which]
    newest = newest_checkpoint(directory)
    if newest is None:
        raise CheckpointError(
            f"{workdir}: no epoch is finished yet, so there is no {which} model",
            hint=f"l2rm --workdir={workdir}",
        )
    return newest


def _abstract_state(saved: dict[str, Any]) -> TrainState:
    """The state whose parts a checkpoint describes; it describes the random key as numbers."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    return TrainState(**{**saved, "key": key})


def _epoch_record(workdir: str | Path, step: int) -> dict[str, Any]:
    """The record of the epoch that ended with this step; empty if none did."""
    path = Path(workdir) / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if has_file(path) else []
    # Without a newline, it is the last line of a run that was killed while writing it.
    complete = (line for line in lines if line.endswith(b"\n"))
    try:
        records = [json.loads(line) for line in complete if b'"epoch"' in line]
    except ValueError as error:
        raise CheckpointError(f"{path}: not the log of a run ({first_line(error)})") from error
    own = (record for record in records if record.get("step") == step and "rsum" in record)
    return next((record for record in own if record.get("kind") == "epoch"), {})
