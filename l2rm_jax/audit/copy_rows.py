"""Copy rows of a table byte by byte, with the captions of some rows replaced."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.importing.column_names import LINES
from l2rm_jax.importing.csv_rows import find_dialect, read_records
from l2rm_jax.importing.text_io import as_unicode, open_text
from l2rm_jax.importing.text_lists import UnreadableError, parse_list

Rows = Int[np.ndarray, " rows"]
Edits = Mapping[int, dict[str, str]]  # captions of a row with their replacements, by row, from 1
Columns = tuple[Sequence[str], Sequence[str]]  # names of those with images and with captions
_Edit = Callable[[str, dict[str, str]], tuple[str, int]]  # a row as text; with the number of edits


def replace_captions(value: Any, captions: Mapping[str, str]) -> tuple[Any, int]:
    """Replace captions in a cell: a text, a list or an object, also as text.

    Args:
      value: the cell.
      captions: captions with their replacements; white space makes no difference.

    Returns:
      The cell, and the number of replacements.
    """
    if isinstance(value, str):
        known = {_plain(old): new for old, new in captions.items()}
        if _plain(value) in known:
            return known[_plain(value)], 1
        try:
            parsed = parse_list(value) if value.lstrip()[:1] in ("[", "{") else None
        except UnreadableError:
            parsed = None
        if not isinstance(parsed, list | dict):
            return _replace_lines(value, known)
        parsed, count = replace_captions(parsed, captions)
        return (json.dumps(parsed, ensure_ascii=False), count) if count else (value, 0)
    if isinstance(value, list):
        found = [replace_captions(each, captions) for each in value]
        return [each for each, _ in found], sum(count for _, count in found)
    if isinstance(value, dict):
        found = {name: replace_captions(each, captions) for name, each in value.items()}
        changed = {name: each for name, (each, _) in found.items()}
        return changed, sum(count for _, count in found.values())
    return value, 0


def _plain(text: str) -> str:
    return " ".join(as_unicode(text).split())


def _replace_lines(text: str, known: Mapping[str, str]) -> tuple[str, int]:
    """Replace captions that are lines of a text (`column_names.LINES`)."""
    lines = text.splitlines(keepends=True) if "\n" in text.strip() else []
    count = sum(_plain(line) in known for line in lines)
    if not count:
        return text, 0
    found = (known.get(_plain(line)) for line in lines)
    ends = (line[len(line.rstrip("\r\n")) :] for line in lines)
    changed = zip(lines, found, ends, strict=True)
    return "".join(line if new is None else new + end for line, new, end in changed), count


def _copy(
    rows: Iterator[tuple[int, str]],
    out: Path,
    encode: Callable[[str], bytes],
    stays: Rows,
    edits: Edits,
    edit: _Edit,
) -> int:
    """Copy the numbered rows that stay, without those in which nothing can be replaced.

    Returns:
      The number of captions that were replaced.
    """
    wanted, done = iter(stays.tolist()), 0
    next_row = next(wanted, None)
    with out.open("ab") as copy:
        for number, text in rows:
            if number != next_row:
                continue
            next_row = next(wanted, None)
            if number in edits:
                text, count = edit(text, edits[number])
                done += count
                if not count:
                    continue
            copy.write(encode(text))
    return done


def _copy_lines(source: Path, out: Path, stays: Rows, columns: Columns, edits: Edits) -> int:
    """Copy lines of a file without a header; blank lines are not rows."""
    text = open_text(source)
    out.write_bytes(text.mark)
    lines = (line for line in text.lines() if line.strip())

    def edit(line: str, captions: dict[str, str]) -> tuple[str, int]:
        end = line[len(line.rstrip()) :]
        row, count = _edit_fields(json.loads(line), columns[1], captions)
        return (json.dumps(row, ensure_ascii=False) + end, count) if count else (line, 0)

    return _copy(enumerate(lines, 1), out, text.encode, stays, edits, edit)


def _edit_fields(
    row: dict[str, Any], names: Sequence[str], captions: dict[str, str], prefix: str = ""
) -> tuple[dict[str, Any], int]:
    """Replace captions in the fields of an object whose path `a.b` is a column of captions."""
    changed, done = {}, 0
    for name, value in row.items():
        path, count = f"{prefix}{name}", 0
        if path in names:
            value, count = replace_captions(value, captions)
        elif isinstance(value, dict):
            value, count = _edit_fields(value, names, captions, f"{path}.")
        changed[name], done = value, done + count
    return changed, done


def _copy_text(
    source: Path, out: Path, stays: Rows, columns: Columns, edits: Edits, kind: str
) -> int:
    """Copy the header, if there is one, and rows, each of which may span several lines."""
    dialect = find_dialect(source, kind, [*columns[0], *columns[1]])
    header = int(dialect.has_header)
    stays = np.concatenate([np.zeros(header, int), stays])
    out.write_bytes(dialect.text.mark)
    names = {name.removesuffix(LINES) for name in columns[1]}
    places = [place for place, name in enumerate(dialect.names) if name in names]

    def edit(text: str, captions: dict[str, str]) -> tuple[str, int]:
        lines, done = iter(text.splitlines(keepends=True)), 0
        [(_, fields)] = read_records(lines, dialect.separator)
        for place in places:
            if place < len(fields):
                fields[place], count = replace_captions(fields[place], captions)
                done += count
        if not done:
            return text, 0
        end = text[len(text.rstrip("\r\n")) :]
        line = io.StringIO(newline="")
        csv.writer(line, delimiter=dialect.separator, lineterminator=end).writerow(fields)
        return line.getvalue(), done

    rows = enumerate((text for text, _ in dialect.records()), 1 - header)
    return _copy(rows, out, dialect.text.encode, stays, edits, edit)


def _copy_parquet(source: Path, out: Path, stays: Rows, columns: Columns, edits: Edits) -> int:
    """Copy the rows of each row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    start, done, table = 0, 0, open_parquet(source)
    with out.open("wb") as file, pq.ParquetWriter(file, table.schema_arrow) as writer:
        for number in range(table.num_row_groups):
            group = table.read_row_group(number)
            rows = stays[(stays > start) & (stays <= start + len(group))]
            changed = {row: edits[row] for row in rows.tolist() if row in edits}
            counts = dict.fromkeys(changed, 0)
            for place, field in enumerate(group.schema):
                if changed and field.name in {each.partition(".")[0] for each in columns[1]}:
                    values = group[field.name].to_pylist()
                    for row, captions in changed.items():
                        at = row - start - 1
                        values[at], count = replace_captions(values[at], captions)
                        counts[row] += count
                    group = group.set_column(place, field, pa.array(values, field.type))
            done += sum(counts.values())
            rows = rows[[counts.get(row) != 0 for row in rows.tolist()]] if changed else rows
            if len(rows):
                writer.write_table(group.take(rows - start - 1))
            start += len(group)
    return done


COPIERS = {
    "jsonl": _copy_lines,
    "parquet": _copy_parquet,
    "csv": partial(_copy_text, kind="csv"),
    "tsv": partial(_copy_text, kind="tsv"),
}
