"""Join a column of several Arrow tables, whose types may differ."""

from collections.abc import Collection, Sequence

import pyarrow as pa
from pyarrow import types

_SINGLE = (
    *(types.is_string, types.is_large_string, types.is_boolean, types.is_integer),
    *(types.is_floating, types.is_decimal, types.is_date, types.is_timestamp),
)


def joined_type(kinds: Collection[pa.DataType]) -> pa.DataType | None:
    """Return the type that holds values of several types; None unless all hold single values.

    Single values are text, numbers, bools and dates. Different types of numbers become the wider
    one, and other types become text.
    """
    kinds = {kind.value_type if types.is_dictionary(kind) else kind for kind in kinds}
    kinds -= {pa.null()}
    if not kinds or not all(any(check(kind) for check in _SINGLE) for kind in kinds):
        return None
    is_wrapped = pa.uint64() in kinds and any(types.is_signed_integer(kind) for kind in kinds)
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in kinds) and not is_wrapped:
        schemas = [pa.schema({"": kind}) for kind in kinds]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    if len(kinds) > 1 or pa.string() in kinds:
        return pa.large_string()  # the cells together may hold more than 2 GiB
    return kinds.pop()


def column_type(tables: Sequence[pa.Table], name: str) -> pa.DataType | None:
    """Return the joined type of a column over the tables that have it (`joined_type`)."""
    return joined_type({table[name].type for table in tables if name in table.column_names})


def whole_column(tables: Sequence[pa.Table], name: str) -> pa.ChunkedArray:
    """Join a column that has a joined type; null for the rows of tables without it."""
    kind, chunks = column_type(tables, name), []
    for table in tables:
        has_column = name in table.column_names
        cells = table[name] if has_column else pa.chunked_array([pa.nulls(len(table))])
        chunks += cast_column(cells, kind).chunks
    return pa.chunked_array(chunks, kind)


def cast_column(cells: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cast cells to a type; bytes that are not UTF-8 become replacement characters."""
    cells = cells.cast(kind, safe=False)
    if kind != pa.large_string():
        return cells
    try:
        return cells.cast(pa.large_binary()).cast(kind)  # which checks them
    except pa.ArrowInvalid:
        content = cells.cast(pa.large_binary()).to_pylist()
        return pa.chunked_array([[c and c.decode("utf-8", "replace") for c in content]], kind)
