"""Columns of a table of any library, and arrays of any library, as NumPy arrays."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from l2rm_jax.errors import DataError

MISSING = ("None", "nan", "<NA>", "NaT")  # how missing values print
_TABLES = (
    "a pandas or polars DataFrame, a pyarrow Table, a datasets.Dataset or a mapping of columns"
)


def columns_of(table: Any) -> dict[str, Any]:
    """Return the columns of a table: name -> array or list, in the order of its rows.

    The index of a pandas frame is ignored. Pictures of a `datasets.Dataset` are not decoded.

    Args:
      table: a pandas or polars DataFrame, a pyarrow Table, a `datasets.Dataset` or a mapping.

    Raises:
      DataError: another type, two columns of one name, columns of different lengths, or no row.
    """
    columns: dict[str, Any] = {}
    for name, values in _named_columns(table):
        is_table = hasattr(values, "columns") or hasattr(values, "with_format")
        if is_table or isinstance(values, Mapping | str) or not hasattr(values, "__iter__"):
            hint = f"; pass one of the tables, such as table[{name!r}]" * is_table
            raise DataError(
                f"table[{name!r}]: found {type(values).__name__}, expected a column{hint}"
            )
        if name in columns:
            raise DataError(f"table: found two columns {name!r}, expected different names")
        columns[name] = _column(values)
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"table: found columns of lengths {lengths}, expected one length")
    if not any(lengths.values()):
        raise DataError("table: found no rows, expected at least one")
    return columns


def _named_columns(table: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(table, Mapping):
        return [(str(name), values) for name, values in table.items()]
    if hasattr(table, "with_format") and hasattr(table, "__len__"):  # a datasets.Dataset
        table = table.with_format("arrow")[:]
    if hasattr(table, "get_columns"):  # polars
        return [(column.name, column) for column in table.get_columns()]
    if hasattr(table, "iloc") and hasattr(table, "columns"):  # pandas
        return [(str(name), table.iloc[:, place]) for place, name in enumerate(table.columns)]
    if hasattr(table, "column_names") and hasattr(table, "columns"):  # pyarrow
        return list(zip(table.column_names, table.columns, strict=True))
    raise DataError(f"table: found {type(table).__name__}, expected {_TABLES}")


def _column(values: Any) -> Any:
    """A column as an array or a list. Integers with gaps stay integers: floats may round ids."""
    if not hasattr(values, "__array__"):
        return list(values)
    array, stored = as_numpy(values), getattr(values, "dtype", getattr(values, "type", None))
    if array.dtype.kind == "f" and "int" in str(stored).lower():
        return [cell.as_py() if hasattr(cell, "as_py") else cell for cell in values]
    return array


def as_numpy(values: Any) -> np.ndarray:
    """Return an array; one of PyTorch may need gradients, be on a device, or be bfloat16."""
    if hasattr(values, "detach"):  # a PyTorch tensor
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    return np.asarray(values)


def as_vectors(values: Any) -> np.ndarray:
    """Return an array of a list of rows, a column of vectors, or an array of any library.

    bfloat16, which NumPy does not know, becomes float32; memory-mapped arrays stay on disk.

    Raises:
      ValueError: the rows have different lengths.
    """
    rows = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    array = np.array([*map(as_numpy, values)]) if rows else as_numpy(values)
    if array.dtype == object and array.ndim == 1:  # a column of pandas or polars
        array = np.array([*map(as_numpy, array)])
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def further_columns(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return columns as arrays of numbers, bools or dates, or of objects with None for gaps.

    Raises:
      DataError: a column has several values per row; lists every one.
    """
    problems = [
        f"table: column {name!r}: found {values.dtype} {list(values.shape)}, expected one value "
        "per row"
        for name, values in columns.items()
        if isinstance(values, np.ndarray) and values.ndim != 1
    ]
    if problems:
        raise DataError(*problems)
    return {name: _further_column(values) for name, values in columns.items()}


def _further_column(values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufmM":
        return values
    cells = [None if _is_missing(cell) else cell for cell in values]
    kinds = set(map(type, cells))
    if kinds == {int, float} and all(float(cell) == cell for cell in cells):
        kinds = {float}
    is_plain = kinds in ({bool}, {int}, {float})
    return np.asarray(cells) if is_plain else np.fromiter(cells, object, len(cells))


def _is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN, or the missing value of a date or of pandas."""
    if cell is None or isinstance(cell, float):
        return cell is None or cell != cell
    return type(cell).__name__ in ("NAType", "NaTType") or (
        isinstance(cell, np.generic) and str(cell) in MISSING and not isinstance(cell, np.str_)
    )
