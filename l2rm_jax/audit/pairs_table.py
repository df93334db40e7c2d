"""The table of training pairs as a file: CSV, or Parquet with the package pyarrow."""

import csv
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from l2rm_jax.errors import ConfigError

_BLOCK = 4096  # rows that are turned into text at once


class Column(NamedTuple):
    """A column: text, integers, floats or booleans.

    Attributes:
      values: [rows] the values; an array of objects is text.
      known: [rows] which of them count; the other cells are empty.
    """

    values: np.ndarray
    known: Bool[np.ndarray, " rows"]


def check_ending(path: Path) -> None:
    """Check that a table can be written under this name.

    Raises:
      ConfigError: the ending is neither .csv nor .parquet, or pyarrow is missing.
    """
    if path.suffix not in _WRITERS:
        raise ConfigError(f"--out: {path}, expected a name that ends in .csv or .parquet")
    if path.suffix == ".parquet":
        try:
            importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ConfigError(
                f"{path}: needs pyarrow, which is missing",
                hint="pip install 'l2rm_jax[parquet]'",
            ) from error


def write_table(path: Path, ending: str, columns: Mapping[str, Column]) -> None:
    """Write columns of equal length to a file; `ending` is one that `check_ending` accepts."""
    _WRITERS[ending](path, columns)


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
