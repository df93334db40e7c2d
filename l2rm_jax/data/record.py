"""Record of an import, `dataset.json`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2rm_jax.data.content_hashes import hash_file
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError, Problems, first_line
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.regular_files import has_file, parse_json
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


def check_files(directory: str | Path, split: str) -> None:
    """Check that the files of a split which an import wrote exist, and that its texts are the same.

    An array shows by its header that it is whole; a text that was cut does not.

    Raises:
      DataError: the record is damaged, or a file is missing, of another kind or changed; lists
        every such file.
    """
    record, problems = read_record(directory) or {}, Problems()
    for name, expected in record.get("files", {}).items():
        if name.startswith(f"{split}_"):
            problems.attempt(_check_file, Path(directory, name), expected)
    problems.raise_all()


def _check_file(file: Path, expected: str) -> None:
    if not has_file(file):
        raise DataError(f"{file}: no such file, expected it, as {DATASET_FILE} lists it")
    if file.suffix == ".txt" and (found := hash_file(file)) != expected:
        raise DataError(
            f"{file}: found {file.stat().st_size:,} bytes with the hash {found[:8]}, expected "
            f"{expected[:8]}, as {DATASET_FILE} lists it: it was cut or changed; import again, or "
            f"remove it from `files` in {DATASET_FILE} if the change is intended"
        )


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
    if not has_file(file):
        return None
    try:
        return parse_json(file.read_bytes())
    except ValueError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(
        f"{file}: cannot be read ({first_line(error)}), expected a file written by l2rm import"
    )


def keep_record(directory: str | Path, workdir: str | Path) -> None:
    """Copy the `dataset.json` of a run's data to its work directory, if it exists."""
    file, copy = Path(directory) / DATASET_FILE, Path(workdir) / DATASET_FILE
    if directory and has_file(file) and not copy.exists():
        replace_file(copy, file.read_bytes())
