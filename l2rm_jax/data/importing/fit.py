"""A head and sizes that fit an imported directory, for a run without `--config`."""

import json
from pathlib import Path
from typing import Any

from l2rm_jax.data.files import replace_file
from l2rm_jax.errors import DataError, first_line

DATASET_FILE = "dataset.json"
_BATCH = 128  # the default; small data get smaller batches
_STEPS = 8  # steps that an epoch should have at least


def read_record(directory: str | Path) -> dict[str, Any] | None:
    """What `dataset.json` says of an imported directory; None for other directories.

    Raises:
      DataError: the file is damaged.
    """
    file = Path(directory) / DATASET_FILE
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_bytes())
        if record["splits"]["train"]["captions"] >= 0 and record["images"]["dimensions"] > 0:
            return record
        raise ValueError("sizes below 0")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file}: cannot be read ({first_line(error)}), expected what l2rm import wrote"
        ) from error


def keep_record(directory: str | Path, workdir: str | Path) -> None:
    """Copy `dataset.json` of a run's data to its work directory, if there is one."""
    file, copy = Path(directory) / DATASET_FILE, Path(workdir) / DATASET_FILE
    if directory and file.is_file() and not copy.exists():
        replace_file(copy, file.read_bytes())


def fitting_fields(record: dict[str, Any]) -> dict[str, Any]:
    """Config fields for data of this kind and size: their names and values.

    A caption of one vector has no words to compare with regions, so the head is `vse`; words get
    `saf`. Sizes suit a CPU, and an epoch has several steps.
    """
    is_single = record["captions"].get("vectors") == 1
    batch = _BATCH
    while batch > 8 and batch * _STEPS > record["splits"]["train"]["captions"]:
        batch //= 2
    return {
        "model.head": "vse" if is_single else "saf",
        "model.embed_dim": 256,
        "model.sim_dim": 64,
        "optim.learning_rate": 5e-4,
        "optim.decay_epochs": 6,
        "train.batch_size": batch,
        "train.warmup_epochs": 4,
        "train.epochs": 8,
        "co_teaching.mismatched_epoch": 4,
        "sps.clean_epoch": 2,
        "sps.noisy_epoch": 3,
    }


def describe_fit(record: dict[str, Any], fields: dict[str, Any]) -> str:
    """One line that says what was chosen, and why."""
    images, captions = record["images"], record["captions"]
    words = f"{_sets(captions)} a caption" if "vectors" in captions else "captions of words"
    return (
        f"{_sets(images)} of {images['dimensions']} an image, {words}: head "
        f"{fields['model.head']}, embed_dim {fields['model.embed_dim']}, batches of "
        f"{fields['train.batch_size']}; --config=NAME chooses otherwise"
    )


def _sets(form: dict[str, Any]) -> str:
    return "1 vector" if form["vectors"] == 1 else f"{form['vectors']} vectors"
