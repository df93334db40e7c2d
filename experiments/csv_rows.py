"""Rows of numbers as CSV files."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from l2rm_jax.data.files import replace_file


def write_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
) -> None:
    """Write rows as a CSV file, whole or not at all.

    Args:
      path: the file.
      rows: values by column; a column that a row lacks is empty, values of others are left out.
      columns: names of the columns; those of the first row by default.
    """
    text = io.StringIO(newline="")
    names = list(rows[0] if columns is None else columns)
    writer = csv.DictWriter(text, names, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())
