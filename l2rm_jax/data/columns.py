"""Further columns of the user's table, as `l2rm import` keeps them beside the captions."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError, first_line
from l2rm_jax.jobs.regular_files import has_file


def read_columns(
    directory: str | Path, split: str, pairs: int, is_part: bool = False
) -> dict[str, np.ndarray]:
    """Read the further columns of the user's table for the captions of a split.

    Args:
      directory: directory of the data.
      split: name of the split.
      pairs: number of captions of the split, or number of the first ones to read.
      is_part: whether there may be more captions than `pairs`.

    Returns:
      `[pairs]` each, by the name of the column, in the order of the captions; empty without such
      columns. Text is an object array with None for missing values, and so are integers and bools
      if values are missing; missing floats are NaN, missing dates NaT.

    Raises:
      DataError: the file is damaged, or has another number of rows.
      ConfigError: there is such a file, and the package pyarrow is missing.
    """
    file = split_file(directory, split, "columns")
    if not has_file(file):
        return {}
    table = open_parquet(file)
    rows = table.metadata.num_rows
    if rows < pairs or (rows > pairs and not is_part):
        raise DataError(f"{file}: found {rows} rows, expected {pairs}, one per caption of {split}")
    try:
        columns = table.read()[:pairs]
        return {name: column_values(columns[name]) for name in columns.column_names}
    except (ValueError, OSError) as error:  # pyarrow's errors of damaged content
        raise DataError(f"{file}: cannot be read ({first_line(error, 200)})") from error


def further_names(file: Path, read: Collection[str]) -> list[str]:
    """Name the columns of a Parquet file with single values, except those in `read`.

    Raises:
      ConfigError: the package pyarrow is missing.
    """
    schema = open_parquet(file).schema_arrow
    from l2rm_jax.data.arrow_columns import joined_type

    names = [name for name in schema.names if name not in read]
    return [name for name in names if joined_type({schema.field(name).type})]


def read_shard_columns(files: Sequence[Path], read: Collection[str]) -> dict[str, np.ndarray]:
    """Read the further columns of the metadata of shards, except those in `read`.

    Args:
      files: the metadata of each shard; may be none. A column may be missing from some of them.
      read: names of the columns that are read otherwise.

    Returns:
      `[rows]` each, by the name of the column, as `read_columns` returns them.

    Raises:
      ConfigError: the package pyarrow is missing.
    """
    tables = [open_parquet(file).read(further_names(file, read)) for file in files]
    if not tables:
        return {}
    from l2rm_jax.data.arrow_columns import column_type, whole_column

    names = dict.fromkeys(name for table in tables for name in table.column_names)
    known = [name for name in names if column_type(tables, name)]
    return {name: column_values(whole_column(tables, name)) for name in known}


def column_values(column: Any) -> np.ndarray:
    """Convert a column of Arrow to an array; missing values as in `read_columns`."""
    from pyarrow import types

    if types.is_integer(column.type) and column.null_count:
        return np.array(column.to_pylist(), object)  # as floats, long numbers would lose digits
    if not types.is_large_string(column.type):
        return column.to_numpy()
    # Equal texts become one object, as a column of slices has few different ones.
    encoded = column.combine_chunks().dictionary_encode()
    texts = np.array([*encoded.dictionary.to_pylist(), None], object)
    return texts[encoded.indices.fill_null(-1).to_numpy()]
