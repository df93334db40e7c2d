"""Tables of text with separators, read into Arrow."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from l2rm_jax.importing.csv_rows import find_dialect
from l2rm_jax.importing.text_io import as_unicode

_CHUNK = 2_000  # rows that become Arrow at once; more of them take longer each

Skipped = list[tuple[int, str]]  # rows that are not in the tables, from 1, and why


def read_table(file: Path, kind: str, known: Sequence[str]) -> tuple[pa.Table, Skipped]:
    """Read all rows as text; rows are numbered without the header and without blank lines."""
    dialect = find_dialect(file, kind, known)
    names, width = dialect.names, len(dialect.names)
    tables, rows = [], []
    skipped: Skipped = []
    records = islice(dialect.records(), int(dialect.has_header), None)
    for number, (line, fields) in enumerate(records, 1):
        if not line.endswith(("\n", "\r")) and _is_cut(fields, width):
            reason = f"cut: found {len(fields)} fields and no end of the line, expected {width}"
            skipped.append((number, reason))
            continue
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
            tables.append(_table(rows, names))
            rows = []
    return pa.concat_tables([*tables, _table(rows, names)]), skipped


def _is_cut(fields: Sequence[str], width: int) -> bool:
    """Whether the last row, without an end of line, lacks fields or the end of a quote.

    A row that is cut within its last field looks like one of a file whose last line has no end.
    """
    has_open_quote = any(each.lstrip().startswith('"') and each.count('"') % 2 for each in fields)
    return len(fields) < width or has_open_quote


def _table(rows: list[list[str | None]], names: Sequence[str]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return pa.table([_text_array(column) for column in columns], names=list(names))


def _text_array(cells: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(cells, pa.large_string())
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return pa.array([cell and as_unicode(cell) for cell in cells], pa.large_string())
