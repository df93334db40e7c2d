"""Tables of text with separators, read into Arrow."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from l2rm_jax.data.importing.records import find_dialect
from l2rm_jax.data.importing.texts import as_unicode

_CHUNK = 100_000  # rows that become Arrow at once

Skipped = list[tuple[int, str]]  # rows that are not in the tables, from 1, and why


def read_table(file: Path, kind: str, known: Sequence[str]) -> tuple[pa.Table, Skipped]:
    """Read all rows as text; rows are numbered without the header and without blank lines."""
    dialect = find_dialect(file, kind, known)
    width, chunks, skipped = len(dialect.names), [], []
    names = list(dialect.names)
    records = islice(dialect.records(), int(dialect.has_header), None)
    rows: list[list[str | None]] = []
    for number, (_, fields) in enumerate(records, 1):
        if len(fields) != width:
            while len(fields) > width and not fields[-1].strip():
                fields.pop()
            if len(fields) > width:
                reason = f"too many fields: expected {width} fields, saw {len(fields)}"
                skipped.append((number, reason))
                continue
            fields += [None] * (width - len(fields))
        rows.append(fields)
        if len(rows) == _CHUNK:
            chunks.append(_table(rows, names))
            rows = []
    return pa.concat_tables([*chunks, _table(rows, names)]), skipped


def _table(rows: list[list[str | None]], names: list[str]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return pa.table([_text_array(column) for column in columns], names=names)


def _text_array(cells: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(cells, pa.large_string())
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return pa.array([cell and as_unicode(cell) for cell in cells], pa.large_string())
