"""The trained model of a run: read without its data, saved apart from it, or a start.

A saved model has its weights in safetensors (`model.safetensors`: parameters and statistics by
their path), a model card, `README.md`, and some files of the work directory: `config.json`, the
vocabulary or the pretrained tokenizer, and `results.json` and `dataset.json` if they exist.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.record import DATASET_FILE, read_record
from l2rm_jax.data.run_words import VOCABULARY_FILE
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.data.train_pairs import Data
from l2rm_jax.devices.hosts import is_primary, wait_for_file
from l2rm_jax.errors import CheckpointError, ConfigError, first_line
from l2rm_jax.evaluation.recall import DIRECTIONS, RECALL_AT
from l2rm_jax.jobs.files import new_directory, replace_file
from l2rm_jax.jobs.regular_files import has_file
from l2rm_jax.methods import Method
from l2rm_jax.methods.base import TrainState
from l2rm_jax.methods.learned_scale import GROUP
from l2rm_jax.pretrained.directory import SMALL_FILES
from l2rm_jax.pretrained.specs import Bases
from l2rm_jax.pretrained.tokenizer import Pieces
from l2rm_jax.pretrained.weight_files import WEIGHT_FILE, needed_module
from l2rm_jax.run.checkpoint_format import newest_checkpoint, read_checkpoint
from l2rm_jax.run.config_file import CONFIG_FILE, read_config
from l2rm_jax.run.pretrained import (
    CAPTIONS,
    IMAGES,
    PRETRAINED,
    PRETRAINED_IMAGES,
    EncoderSide,
    open_own,
)
from l2rm_jax.run.results import RESULTS_FILE, versions

CARD = "README.md"
START_FILE = "start.npz"  # the model of `model.start`, kept in the work directory
_PARTS = ("params", "batch_stats")  # of a state, that make a model
_FILES = (
    *(CONFIG_FILE, VOCABULARY_FILE, RESULTS_FILE, DATASET_FILE),
    *(f"{own}/{name}" for own in (PRETRAINED, PRETRAINED_IMAGES) for name in SMALL_FILES),
)
SAVED = (*_FILES, WEIGHT_FILE)  # files of a saved model that `read_trained` reads


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
    config, saved = read_config(workdir), Path(workdir) / WEIGHT_FILE
    if saved.is_file():
        state, epoch = _read_saved(saved)
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
    """Write a trained model to a new directory, which `read_trained` reads.

    Args:
      trained: the model.
      workdir: the directory that it was read from.
      directory: the new directory.

    Raises:
      ConfigError: the directory exists.
      DataError: safetensors is not installed.
    """
    save = needed_module("safetensors.numpy").save
    progress = {"epoch": trained.epoch, "rsum": trained.rsum}
    arrays = flatten_dict({part: getattr(trained.state, part) for part in _PARTS}, sep="/")
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {name: json.dumps(value) for name, value in progress.items()}
    with new_directory(Path(directory)) as unfinished:
        for name in _FILES:
            source, target = Path(workdir) / name, unfinished / name
            if has_file(source):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        # The library's own writing of files has another error for a full disk.
        replace_file(unfinished / WEIGHT_FILE, save(arrays, metadata))
        file = Path(workdir) / RESULTS_FILE
        results = json.loads(file.read_bytes()) if has_file(file) else {}
        lines = _card(trained.config, progress, results)
        (unfinished / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")


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


def _read_saved(file: Path) -> tuple[TrainState, dict[str, Any]]:
    """Read the weights and the progress of a saved model; the state has no optimiser."""
    safe_open = needed_module("safetensors").safe_open
    try:
        with safe_open(file, framework="numpy") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            progress = {k: json.loads(value) for k, value in (opened.metadata() or {}).items()}
        parts = {"params": {}, "batch_stats": {}, **unflatten_dict(arrays, sep="/")}
        epoch = np.int32(progress["epoch"])
    except Exception as error:  # of the library, of any kind
        raise CheckpointError(
            f"{file}: not the weights of a saved model ({first_line(error, 200)})"
        ) from error
    own = {"opt_state": (), "own": (), "key": jax.random.key(0)}
    return TrainState(step=np.int32(0), epoch=epoch, **parts, **own), progress


def _card(config: ConfigDict, progress: dict[str, Any], results: dict[str, Any]) -> Iterator[str]:
    """The lines of the model card."""
    mismatch, model = config.mismatch, config.model
    yield f"# {config.data.name}: {config.method} with the head {model.head}"
    yield ""
    yield "A model of l2rm_jax that finds images by captions and captions by images."
    yield ""
    yield "```python"
    yield "import l2rm_jax"
    yield ""
    yield 'retriever = l2rm_jax.load("DIR")  # this directory'
    yield "```"
    yield ""
    weights, pictures = model.pretrained, model.pretrained_images or model.pretrained
    rows = {
        "data": config.data.name,
        "captions read by": _reader(CAPTIONS, config, weights),
        "images read by": _reader(IMAGES, config, pictures),
        "mismatch protocol": mismatch.protocol,
        "mismatch rate, asked": f"{mismatch.rate:g}",
        "method": config.method,
        "head": model.head,
        "epoch": progress["epoch"],
        "validation rSum": _number(progress.get("rsum")),
        "seed": config.seed,
    }
    if "true_rate" in results:
        rows["mismatch rate, true"] = f"{results['true_rate']:.4g}"
    yield from _table(("", ""), [(name, str(value)) for name, value in rows.items()])
    if results.get("test"):
        names = [f"{side}_r{k}" for side in DIRECTIONS for k in RECALL_AT]
        yield ""
        yield "Test recalls in percent, of the run's best epoch by validation:"
        yield ""
        title = [f"{side} R@{k}" for side in DIRECTIONS for k in RECALL_AT]
        yield from _table(
            ("protocol", *title, "rSum"),
            [
                (protocol, *(_number(row[name]) for name in names), _number(row["rsum"]))
                for protocol, row in results["test"].items()
            ],
        )
    used = results.get("versions") or versions()
    yield ""
    yield f"Versions: {', '.join(f'{name} {value}' for name, value in used.items())}."


def _reader(side: EncoderSide, config: ConfigDict, directory: str) -> str:
    encoder = config.model[side.encoder]
    return f"{encoder} ({Path(directory).name})" if side.is_used(config) else encoder


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _table(title: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    for row in (title, ("---",) * len(title), *rows):
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def check_start_fields(config: ConfigDict, method: Method) -> None:
    """Check that the method can start from a model.

    Raises:
      ConfigError: the method is a fit in closed form.
    """
    if config.model.start and method.plan is None:
        raise ConfigError(
            f"model.start: found {config.model.start!r}, expected none, as {config.method} is "
            "fitted in closed form"
        )


def add_start(config: ConfigDict, data: Data, workdir: str | Path) -> Data:
    """Add the arrays of the model that the run starts from, and keep a copy in its directory.

    Raises:
      ConfigError: there is no run in `model.start`, or it has another vocabulary.
      CheckpointError: that run has not finished an epoch, or its checkpoint is damaged.
    """
    if not config.model.start:
        return data
    path = Path(workdir) / START_FILE
    if is_primary() and not path.exists():
        trained = read_trained(config.model.start)
        _check_words(trained, data, config.model.start)
        parts = {part: getattr(trained.state, part) for part in _PARTS}
        replace_arrays(path, flatten_dict(parts, sep="/"))
    wait_for_file(path)
    with open_arrays(path, "the model of model.start", "remove it to read it again") as file:
        return replace(data, start=dict(file))


def with_start(state: TrainState, start: Mapping[str, np.ndarray]) -> TrainState:
    """Replace the arrays of a first state by a trained model, the same for each network.

    Numbers of the loss that the other run has not learned keep their first values.

    Raises:
      ConfigError: the models differ.
    """
    own = flatten_dict({part: getattr(state, part) for part in _PARTS}, sep="/")
    for name, array in own.items():
        given = start.get(name)
        if given is None and name.startswith(f"params/{GROUP}/"):
            continue
        if given is None or array.shape not in (given.shape, (*array.shape[:1], *given.shape)):
            found = "none" if given is None else list(given.shape)
            raise ConfigError(
                f"model.start: found {found} for {name}, expected {list(array.shape)}: the two "
                "models need the same head, sizes and data of the same form"
            )
        own[name] = jnp.broadcast_to(jnp.asarray(given, array.dtype), array.shape)
    return state.replace(**{part: {} for part in _PARTS} | unflatten_dict(own, sep="/"))


def _check_words(trained: Trained, data: Data, directory: str) -> None:
    """Raise `ConfigError` if the words of the two runs have other numbers."""
    words = trained.vocabulary
    if isinstance(words, Vocabulary) and words != data.vocabulary:
        raise ConfigError(
            f"model.start: {directory} has another vocabulary; set "
            f"data.vocabulary={directory}/vocabulary.json"
        )
