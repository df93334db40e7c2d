"""A trained model as a directory of its own: weights in safetensors, and a page that describes it.

It holds `model.safetensors` (parameters and statistics by their path), a model card, `README.md`,
and some files of the work directory: `config.json`, the vocabulary or the pretrained tokenizer, and
`results.json` and `dataset.json` if they exist. `read_exported` reads the weights again.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from l2rm_jax.data.record import DATASET_FILE
from l2rm_jax.data.run_words import VOCABULARY_FILE
from l2rm_jax.errors import CheckpointError, first_line
from l2rm_jax.evaluation.recall import DIRECTIONS, RECALL_AT
from l2rm_jax.jobs.files import new_directory, replace_file
from l2rm_jax.jobs.regular_files import has_file
from l2rm_jax.methods.base import TrainState
from l2rm_jax.pretrained.directory import SMALL_FILES
from l2rm_jax.pretrained.weight_files import WEIGHT_FILE, needed_module
from l2rm_jax.run.config_file import CONFIG_FILE
from l2rm_jax.run.pretrained import (
    CAPTIONS,
    IMAGES,
    PRETRAINED,
    PRETRAINED_IMAGES,
    EncoderSide,
)
from l2rm_jax.run.results import RESULTS_FILE, versions

CARD = "README.md"
_PARTS = ("params", "batch_stats")
_FILES = (
    *(CONFIG_FILE, VOCABULARY_FILE, RESULTS_FILE, DATASET_FILE),
    *(f"{own}/{name}" for own in (PRETRAINED, PRETRAINED_IMAGES) for name in SMALL_FILES),
)
EXPORTED = (*_FILES, WEIGHT_FILE)  # files that `read_exported` and `read_trained` read


def export(
    workdir: str | Path,
    config: ConfigDict,
    state: TrainState,
    progress: dict[str, Any],
    directory: str | Path,
) -> None:
    """Write a trained model to a new directory.

    Args:
      workdir: the run's work directory, or a directory that this function wrote.
      config: config of the run.
      state: the trained state.
      progress: `epoch` and `rsum` of the state, for its next reader.
      directory: the new directory.

    Raises:
      ConfigError: the directory exists.
      DataError: safetensors is not installed.
    """
    save = needed_module("safetensors.numpy").save
    arrays = flatten_dict({part: getattr(state, part) for part in _PARTS}, sep="/")
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
        lines = _card(config, progress, _results(workdir))
        (unfinished / CARD).write_text("\n".join(lines) + "\n", encoding="utf-8")


def is_exported(directory: str | Path) -> bool:
    """Whether a directory is one that `export` wrote."""
    return has_file(Path(directory) / WEIGHT_FILE)


def read_exported(directory: str | Path) -> tuple[TrainState, dict[str, Any]]:
    """Read the state and the progress that `export` wrote; the state has no optimiser.

    Raises:
      CheckpointError: the file is damaged.
      DataError: safetensors is not installed.
    """
    safe_open = needed_module("safetensors").safe_open
    file = Path(directory) / WEIGHT_FILE
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


def _results(workdir: str | Path) -> dict[str, Any]:
    file = Path(workdir) / RESULTS_FILE
    return json.loads(file.read_bytes()) if has_file(file) else {}


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
