"""Keep the further columns of a table, such as seller, source and date, beside the captions."""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int
from pyarrow import parquet

from l2rm_jax.data.arrow_columns import cast_column, column_type, whole_column
from l2rm_jax.data.shards import DIGEST
from l2rm_jax.data.split_files import split_file
from l2rm_jax.importing.column_names import LINES
from l2rm_jax.importing.columns import Columns
from l2rm_jax.importing.samples import KEY
from l2rm_jax.importing.sources import Source
from l2rm_jax.importing.splits import SPLITS
from l2rm_jax.importing.table_pairs import places_of_rows
from l2rm_jax.jobs.full_disk import named_if_full

_SAMPLED = 100  # cells of each part that show whether a column of text holds lists
_BLOCK = 1 << 16  # rows written at once
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)


def further_columns(source: Source, columns: Columns) -> tuple[str, ...]:
    """Name the columns to keep: text, numbers, bools and dates that are not read otherwise.

    Columns of bytes or lists are left out, and so are lists written as text.

    Args:
      source: the rows.
      columns: the columns read as images, captions and splits.
    """
    captions = {*columns.captions, *(name.removesuffix(LINES) for name in columns.captions)}
    read = {KEY, DIGEST, *columns.image, *captions, columns.split, columns.folder}
    tables = [part.table for part in source.parts]
    names = dict.fromkeys(chain(*(table.column_names for table in tables)))
    others = [name for name in names if name not in read]
    return tuple(n for n in others if column_type(tables, n) and not _holds_lists(tables, n))


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
    tables = [part.table for part in source.parts]
    table = pa.table({name: whole_column(tables, name).combine_chunks() for name in names})
    for split, own in zip(SPLITS, rows, strict=True):
        if not len(own):
            continue
        places = places_of_rows(source, own)
        file = split_file(directory, split, "columns")
        unfinished = file.with_name(f"{file.name}.unfinished")
        with (
            named_if_full(file),
            unfinished.open("wb") as out,
            parquet.ParquetWriter(out, table.schema) as writer,
        ):
            for start in range(0, len(places), _BLOCK):
                writer.write_table(table.take(pa.array(places[start : start + _BLOCK])))
        unfinished.replace(file)


def _holds_lists(tables: Sequence[pa.Table], name: str) -> bool:
    """Whether the first cells of a column are lists or objects, written as text."""
    kind = column_type(tables, name)
    if kind != pa.large_string():
        return False
    first = [table[name][:_SAMPLED] for table in tables if name in table.column_names]
    sampled = chain(*(cast_column(cells, kind).to_pylist() for cells in first))
    texts = [text.strip() for text in sampled if text and text.strip()]
    return bool(texts) and all(map(_LIST.fullmatch, texts))
