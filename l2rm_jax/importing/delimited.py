"""Tables of text with separators, read into Arrow."""

import io
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from l2rm_jax.importing.csv_rows import Dialect, Record, find_dialect, read_records
from l2rm_jax.importing.text_io import as_unicode

_CHUNK = 100_000  # rows that become Arrow at once
_BLOCK = 1 << 22  # bytes

Skipped = list[tuple[int, str]]  # rows that are not in the tables, from 1, and why


def read_table(file: Path, kind: str, known: Sequence[str]) -> tuple[pa.Table, Skipped]:
    """Read all rows as text; rows are numbered without the header and without blank lines."""
    dialect = find_dialect(file, kind, known)
    tables: list[pa.Table] = []
    skipped: Skipped = []
    number = 0
    for block in _blocks(dialect):
        table = _plain_table(block, dialect) if isinstance(block, bytes) else None
        if table is not None:
            number += len(table)
            tables.append(table)
            continue
        if isinstance(block, bytes):
            lines = io.StringIO(block.decode("utf-8", "surrogateescape"), newline="\n")
            block = read_records(lines, dialect.separator)
        number = _read_rows(block, dialect.names, number, tables, skipped)
    return pa.concat_tables([*tables, _table([], dialect.names)]), skipped


def _blocks(dialect: Dialect) -> Iterator[bytes | Iterator[Record]]:
    """The rows below the header: in blocks of whole lines if no quote can join lines, else as one.

    So the plain blocks of a file, which are nearly all, can be read by Arrow, many times as fast.
    """
    text = dialect.text
    with text.path.open("rb") as file:
        is_plain = text.encoding == "utf-8" and text.newline == "\n"
        if not is_plain or any(b'"' in block for block in iter(partial(file.read, _BLOCK), b"")):
            yield islice(dialect.records(), int(dialect.has_header), None)
            return
        file.seek(len(text.mark))
        if dialect.has_header:
            blank = b" \t\r\n" + dialect.separator.encode()
            while (line := file.readline()) and not line.strip(blank):
                pass
        while block := file.read(_BLOCK):
            yield block + file.readline()


def _plain_table(block: bytes, dialect: Dialect) -> pa.Table | None:
    """The rows of lines without quotes; None unless each line is a row of as many fields."""
    if block.count(b"\r") != block.count(b"\r\n"):
        return None
    names = list(dialect.names)
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(column_names=names, use_threads=False, block_size=2 * _BLOCK),
            csv.ParseOptions(delimiter=dialect.separator, quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pa.large_string())),
        )
    except pa.ArrowInvalid:  # other numbers of fields, or bytes that are not UTF-8
        return None
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    lengths = [pc.binary_length(column) for column in table.columns]
    shortest = pc.min(reduce(pc.add, lengths)).as_py() if len(table) else 0
    # Rows that are so short may be of white space alone, and then are none.
    return table if len(table) == lines and shortest > 2 * len(names) else None


def _read_rows(
    records: Iterator[Record],
    names: Sequence[str],
    before: int,
    tables: list[pa.Table],
    skipped: Skipped,
) -> int:
    """Add rows to the tables, or to those left out; return how many there are with those before."""
    width, rows, number = len(names), [], before
    for number, (line, fields) in enumerate(records, before + 1):
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
    tables.append(_table(rows, names))
    return number


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
