"""Record of an import, `dataset.json`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError, first_line
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.regular_files import parse_json
from l2rm_jax.pretrained.feature_encoder import PIXELS

DATASET_FILE = "dataset.json"
BY_RUN = {"by": "run"}  # `split` of an import with the single split train: runs draw dev and test


def read_record(directory: str | Path) -> dict[str, Any] | None:
    """Read the `dataset.json` of an imported directory; None for shards and other directories.

    Raises:
      DataError: the file is damaged.
    """
    file = Path(directory) / DATASET_FILE
    record = _load(file)
    try:
        if record is None or "shards" in record:
            return None
        images = record["images"]
        size = images["size"] if images.get("kind") == PIXELS else images["dimensions"]
        if record["splits"]["train"]["captions"] >= 0 and size > 0:
            return record
        raise ValueError("sizes below 0")
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(file, error) from error


def is_undivided(directory: str | Path) -> bool:
    """Return whether a directory was imported as the single split train, and has no other split.

    Raises:
      DataError: its `dataset.json` is damaged.
    """
    record = read_record(directory) if directory else None
    if record is None or record.get("split") != BY_RUN:
        return False
    kinds = ("features", "pixels")
    files = [split_file(directory, name, kind) for name in ("dev", "test") for kind in kinds]
    return not any(file.exists() for file in files)


def read_shards_record(directory: str | Path) -> dict[str, Any] | None:
    """Read the `dataset.json` of shards that `l2rm import` wrote; None for other directories.

    Raises:
      DataError: the file is damaged.
    """
    record = _load(Path(directory) / DATASET_FILE)
    return record if isinstance(record, dict) and "shards" in record else None


def write_record(directory: Path, record: Mapping[str, Any]) -> None:
    """Write the `dataset.json` of a directory."""
    text = json.dumps(record, indent=2, ensure_ascii=False)
    replace_file(directory / DATASET_FILE, f"{text}\n".encode())


def _load(file: Path) -> Any:
    """Read the content of a JSON file; None if it does not exist."""
    try:
        return parse_json(file.read_bytes()) if file.is_file() else None
    except ValueError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(
        f"{file}: cannot be read ({first_line(error)}), expected a file written by l2rm import"
    )


def keep_record(directory: str | Path, workdir: str | Path) -> None:
    """Copy the `dataset.json` of a run's data to its work directory, if it exists."""
    file, copy = Path(directory) / DATASET_FILE, Path(workdir) / DATASET_FILE
    if directory and file.is_file() and not copy.exists():
        replace_file(copy, file.read_bytes())
