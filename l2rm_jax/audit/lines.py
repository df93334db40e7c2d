"""Number pairs as a person finds them: by the lines of the user's file, as a spreadsheet counts."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from l2rm_jax.data.content_hashes import is_unchanged
from l2rm_jax.data.files import open_array
from l2rm_jax.data.record import read_record
from l2rm_jax.data.split_files import split_file
from l2rm_jax.importing.csv_rows import find_dialect
from l2rm_jax.importing.text_io import open_text
from l2rm_jax.jobs.regular_files import has_file

LINE, ROW = "line", "row"


class Lines(NamedTuple):
    """Numbers of the pairs for everything that a person reads.

    Attributes:
      word: `LINE` or `ROW`, which a text writes before a number.
      numbers: [pairs] line of the user's file; for a source without lines its row, from 1; without
        a source the row of the pair, from 0.
    """

    word: str
    numbers: Int[np.ndarray, " pairs"]

    def name(self, row: int) -> str:
        """Return how a text names a pair: `line 12`."""
        return f"{self.word} {self.numbers[row]}"


def find_lines(path: str | Path, pairs: Int[np.ndarray, " pairs"]) -> Lines:
    """Return the numbers of pairs of the split train of a directory of data.

    Args:
      path: the directory; "" for data without one.
      pairs: rows of the pairs in the split.
    """
    record = read_record(path) if path else None
    file = split_file(path, "train", "rows")
    if record is None or not has_file(file):
        return Lines(ROW, np.arange(len(pairs)))
    rows = np.array(open_array(file))[pairs]
    lines = _lines_of_rows(record)
    return Lines(ROW, rows) if lines is None else Lines(LINE, lines[rows - 1])


def _lines_of_rows(record: dict[str, Any]) -> Int[np.ndarray, " rows"] | None:
    """Return the line of each row of the table, from 1; None for sources without lines."""
    source = record["source"]
    kind, path = source["kind"], Path(source["path"] or "")
    if kind not in ("csv", "tsv", "jsonl") or source.get("bytes") is None:
        return None
    if not is_unchanged(path, source["hashes"]):
        return None
    if kind == "jsonl":
        return np.flatnonzero([bool(line.strip()) for line in open_text(path).lines()]) + 1
    columns = [*record["columns"]["image"], *record["columns"]["captions"]]
    return np.array(find_dialect(path, kind, columns).spreadsheet_lines())
