"""Rows and lines of the user's file that the audited pairs come from."""

from pathlib import Path

import numpy as np
from jaxtyping import Int
from ml_collections import ConfigDict

from l2rm_jax.data.files import open_array
from l2rm_jax.data.record import read_record
from l2rm_jax.data.split_files import split_file
from l2rm_jax.importing.csv_rows import find_dialect
from l2rm_jax.importing.text_io import open_text
from l2rm_jax.importing.writing import hash_file


def rows_of_user(config: ConfigDict | None, pairs: int) -> Int[np.ndarray, " pairs"] | None:
    """Return the row of the user's table of each pair, from 1; None for data without a table."""
    path = config.data.path if config is not None else ""
    file = split_file(path, "train", "rows")
    if not path or read_record(path) is None or not file.is_file():
        return None
    return np.array(open_array(file))[:pairs]  # of the first images, as training reads them


def lines_of_user(config: ConfigDict | None, pairs: int) -> Int[np.ndarray, " pairs"] | None:
    """Return the line of the user's file of each pair, as a spreadsheet counts; None without lines.

    Sources without lines, such as archives, have none, nor do files that have changed.
    """
    rows = rows_of_user(config, pairs)
    lines = None if rows is None else _lines_of_rows(read_record(config.data.path))
    return None if lines is None else lines[rows - 1]


def _lines_of_rows(record: dict) -> Int[np.ndarray, " rows"] | None:
    """Return the line of each row of the table, from 1; None for sources without lines."""
    source = record["source"]
    kind, path = source["kind"], Path(source["path"] or "")
    if kind not in ("csv", "tsv", "jsonl") or source.get("bytes") is None:
        return None
    if not path.is_file() or [hash_file(path)] != source["hashes"]:
        return None
    if kind == "jsonl":
        return np.flatnonzero([bool(line.strip()) for line in open_text(path).lines()]) + 1
    columns = [*record["columns"]["image"], *record["columns"]["captions"]]
    return np.array(find_dialect(path, kind, columns).spreadsheet_lines())
