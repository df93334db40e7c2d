"""Keep the further columns of a table, such as seller, source and date, beside the captions."""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int
from pyarrow import parquet, types

from l2rm_jax.data.split_files import split_file
from l2rm_jax.importing.columns import Columns
from l2rm_jax.importing.samples import KEY
from l2rm_jax.importing.sources import Source
from l2rm_jax.importing.splits import SPLITS
from l2rm_jax.importing.table_pairs import row_numbers

_SAMPLED = 100  # cells of each part that show whether a column of text holds lists
_BLOCK = 1 << 16  # rows written at once
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)
_SINGLE = (
    *(types.is_string, types.is_large_string, types.is_boolean, types.is_integer),
    *(types.is_floating, types.is_decimal, types.is_date, types.is_timestamp),
)


def further_columns(source: Source, columns: Columns) -> tuple[str, ...]:
    """Name the columns to keep: text, numbers, bools and dates that are not read otherwise.

    Columns of bytes, objects or lists are left out, and so are lists written as text.

    Args:
      source: the rows.
      columns: the columns read as images, captions and splits.
    """
    read = {KEY, *columns.image, *columns.captions, columns.split, columns.folder}
    names = dict.fromkeys(chain(*(part.table.column_names for part in source.parts)))
    others = [name for name in names if name not in read]
    return tuple(n for n in others if _kept_type(source, n) and not _holds_lists(source, n))


def write_columns(
    directory: Path,
    source: Source,
    *,
    names: Sequence[str],
    rows: Sequence[Int[np.ndarray, " captions"]],
) -> None:
    """Write `{split}_columns.parquet` for each split, one row per caption.

    Args:
      directory: directory of the import.
      source: the rows.
      names: the columns to write, as `further_columns` returns them; without any, no file.
      rows: for each split, the row of the source of each caption, from 1; an empty split has no
        file.
    """
    if not names:
        return
    table = pa.table({name: _whole_column(source, name) for name in names})
    numbers = row_numbers(source)
    for split, own in zip(SPLITS, rows, strict=True):
        if not len(own):
            continue
        places = np.searchsorted(numbers, own)
        file = split_file(directory, split, "columns")
        unfinished = file.with_name(f"{file.name}.unfinished")
        with parquet.ParquetWriter(unfinished, table.schema) as writer:
            for start in range(0, len(places), _BLOCK):
                writer.write_table(table.take(pa.array(places[start : start + _BLOCK])))
        unfinished.replace(file)


def _cells(source: Source, name: str) -> list[pa.ChunkedArray]:
    """The cells of a column in each part that has it."""
    return [part.table[name] for part in source.parts if name in part.table.column_names]


def _kept_type(source: Source, name: str) -> pa.DataType | None:
    """The type under which a column is stored; None if it is left out.

    Files may differ in the type: numbers become the wider type, and everything else becomes text.
    """
    kinds = {cells.type for cells in _cells(source, name)} - {pa.null()}
    kinds = {kind.value_type if types.is_dictionary(kind) else kind for kind in kinds}
    if not kinds or not all(any(check(kind) for check in _SINGLE) for kind in kinds):
        return None
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in kinds):
        schemas = [pa.schema({name: kind}) for kind in kinds]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    if len(kinds) > 1 or pa.string() in kinds:
        return pa.large_string()  # the cells together may hold more than 2 GiB
    return kinds.pop()


def _holds_lists(source: Source, name: str) -> bool:
    """Whether the first cells of a column are lists or objects, written as text."""
    kind = _kept_type(source, name)
    if kind != pa.large_string():
        return False
    sampled = chain(*(_cast(cells[:_SAMPLED], kind).to_pylist() for cells in _cells(source, name)))
    texts = [text.strip() for text in sampled if text and text.strip()]
    return bool(texts) and all(map(_LIST.fullmatch, texts))


def _whole_column(source: Source, name: str) -> pa.Array | pa.ChunkedArray:
    """All cells of a column; null for the rows of parts that lack it."""
    kind, chunks = _kept_type(source, name), []
    for part in source.parts:
        has_column = name in part.table.column_names
        cells = part.table[name] if has_column else pa.chunked_array([pa.nulls(len(part.table))])
        chunks += _cast(cells, kind).chunks
    return pa.chunked_array(chunks, kind).combine_chunks()


def _cast(cells: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Cells as another type; bytes that are not UTF-8 become replacement characters."""
    cells = cells.cast(kind, safe=False)
    if kind != pa.large_string():
        return cells
    try:
        return cells.cast(pa.large_binary()).cast(kind)  # which checks them
    except pa.ArrowInvalid:
        content = cells.cast(pa.large_binary()).to_pylist()
        return pa.chunked_array([[c and c.decode("utf-8", "replace") for c in content]], kind)
