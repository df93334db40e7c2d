"""Further columns of the user's table, as `l2rm import` keeps them beside the captions."""

from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError, first_line


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
    if not file.is_file():
        return {}
    table = open_parquet(file)
    rows = table.metadata.num_rows
    if rows < pairs or (rows > pairs and not is_part):
        raise DataError(f"{file}: found {rows} rows, expected {pairs}, one per caption of {split}")
    try:
        columns = table.read()[:pairs]
        return {name: _values(columns[name]) for name in columns.column_names}
    except (ValueError, OSError) as error:  # pyarrow's errors of damaged content
        raise DataError(f"{file}: cannot be read ({first_line(error, 200)})") from error


def _values(column: Any) -> np.ndarray:
    from pyarrow import types

    if types.is_integer(column.type) and column.null_count:
        return np.array(column.to_pylist(), object)  # as floats, long numbers would lose digits
    if not types.is_large_string(column.type):
        return column.to_numpy()
    # Equal texts become one object, as a column of slices has few different ones.
    encoded = column.combine_chunks().dictionary_encode()
    texts = np.array([*encoded.dictionary.to_pylist(), None], object)
    return texts[encoded.indices.fill_null(-1).to_numpy()]
