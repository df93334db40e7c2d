"""What an imported directory says of itself: `dataset.json`."""

import json
from pathlib import Path
from typing import Any

from l2rm_jax.data.encoders.pixels import PIXELS
from l2rm_jax.data.files import replace_file
from l2rm_jax.errors import DataError, first_line

DATASET_FILE = "dataset.json"


def read_record(directory: str | Path) -> dict[str, Any] | None:
    """What `dataset.json` says of an imported directory; None for shards and other directories.

    Raises:
      DataError: the file is damaged.
    """
    file = Path(directory) / DATASET_FILE
    if not file.is_file():
        return None
    try:
        record = json.loads(file.read_bytes())
        if "shards" in record:
            return None
        images = record["images"]
        size = images["size"] if images.get("kind") == PIXELS else images["dimensions"]
        if record["splits"]["train"]["captions"] >= 0 and size > 0:
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
