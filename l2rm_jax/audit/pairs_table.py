"""Write the table of training pairs: CSV, or Parquet with the package pyarrow."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

_BLOCK = 4096  # rows converted to text at once


class Column(NamedTuple):
    """Column of text, integers, floats or booleans.

    Attributes:
      values: [rows] the values; an array of objects is text.
      known: [rows] whether each value is known; the other cells are empty.
    """

    values: np.ndarray
    known: Bool[np.ndarray, " rows"]


def write_table(path: Path, columns: Mapping[str, Column]) -> None:
    """Write columns of equal length to a file whose name ends in `.csv` or `.parquet`."""
    _WRITERS[path.suffix](path, columns)


def _write_csv(path: Path, columns: Mapping[str, Column]) -> None:
    """Write UTF-8 with a header; unknown cells are empty, numbers have six digits."""
    rows = len(next(iter(columns.values())).known)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for start in range(0, rows, _BLOCK):
            block = slice(start, start + _BLOCK)
            writer.writerows(zip(*(_texts(x, block) for x in columns.values()), strict=True))


def _texts(column: Column, block: slice) -> list[str]:
    kind = column.values.dtype.kind
    write = {"b": lambda x: "true" if x else "false", "f": lambda x: f"{x:.6g}"}.get(kind, str)
    values = column.values[block].tolist(), column.known[block].tolist()
    return [write(x) if known else "" for x, known in zip(*values, strict=True)]


def _write_parquet(path: Path, columns: Mapping[str, Column]) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {
        name: pyarrow.array(
            values, mask=~known, type=pyarrow.string() if values.dtype == object else None
        )
        for name, (values, known) in columns.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)


_WRITERS = {".csv": _write_csv, ".parquet": _write_parquet}
