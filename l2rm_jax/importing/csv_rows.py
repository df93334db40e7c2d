"""Read tables of text with separators (CSV, TSV and their relatives) without losing a row.

Quotes are taken as the format has them where they are well formed: a field begins and ends with
one, and those within are doubled or escaped by a backslash. Everywhere else a quote is a character
like any other, so that a stray one never swallows the rows after it.
"""

import csv
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from l2rm_jax.importing.column_names import ADDRESSES, is_usual, looks_like_picture
from l2rm_jax.importing.limits import check_size
from l2rm_jax.importing.text_io import TextFile, as_unicode, open_text

SEPARATORS = {"csv": ",", "tsv": "\t"}
_OTHERS = (",", "\t", ";", "|")
_SAMPLED = 200  # rows that show the separator, and whether there is a header
_BLANK = "\ufeff \t\r\n"
_LONGEST = 20_000  # characters of a field with line breaks; longer captions are rejected anyway
_QUOTINGS = ({"doublequote": True}, {"doublequote": False, "escapechar": "\\"})
_STRICT = {"strict": True, "skipinitialspace": True}
_ENDING = re.compile(r"\.\w{2,5}$")

Record = tuple[str, list[str]]  # a row as it is written, with its line ends; and its fields


class Dialect(NamedTuple):
    """The format of a table.

    Attributes:
      text: the file.
      separator: one character.
      has_header: whether the first row names the columns.
      names: the columns; without a header, named by their content.
    """

    text: TextFile
    separator: str
    has_header: bool
    names: tuple[str, ...]

    def records(self) -> Iterator[Record]:
        """All rows, the header first if there is one; lines without text are none."""
        return read_records(self.text.lines(), self.separator)

    def spreadsheet_lines(self) -> list[int]:
        """Line of each row in a spreadsheet, from 1: blank lines count, breaks in cells do not."""
        records = _divide(self.text.lines(), self.separator)
        lines = [line for line, (_, fields) in enumerate(records, 1) if fields]
        return lines[self.has_header :]


def read_records(lines: Iterator[str], separator: str) -> Iterator[Record]:
    """Divide lines into rows; each line is of exactly one row, or blank."""
    return (record for record in _divide(lines, separator) if record[1])


def _divide(lines: Iterator[str], separator: str) -> Iterator[Record]:
    """Divide lines into rows and blank ones, which have no fields."""
    waiting: deque[str] = deque()

    def next_line() -> str | None:
        return waiting.popleft() if waiting else next(lines, None)

    blank = f"{_BLANK}{separator}"
    while (line := next_line()) is not None:
        if '"' not in line:
            yield line, line.rstrip("\r\n").split(separator) if line.strip(blank) else []
            continue
        taken = [line]
        fields = _quoted_fields(taken, next_line, separator)
        if fields is None:
            waiting.extendleft(reversed(taken[1:]))
            taken, fields = [line], line.rstrip("\r\n").split(separator)
        yield "".join(taken), fields if any(field.strip(_BLANK) for field in fields) else []


def _quoted_fields(
    taken: list[str], next_line: Callable[[], str | None], separator: str
) -> list[str] | None:
    """The fields of a row with well-formed quotes, which may take further lines; else None."""
    while True:
        content = "".join(taken).rstrip("\r\n")
        fields = _parse(content, separator)
        if fields is not None:
            return None if len(taken) > 1 and _are_rows(taken, separator) else fields
        if _parse(content + '"', separator) is None:
            return None
        # A field is still open: it may be closed by the next line that has a quote.
        while True:
            line = next_line()
            if line is None or sum(map(len, taken)) > _LONGEST:
                taken += [] if line is None else [line]
                return None
            taken.append(line)
            if '"' in line:
                break


def _parse(content: str, separator: str) -> list[str] | None:
    """The fields of a row; None if its quotes are not well formed."""
    for quoting in _QUOTINGS[: 1 + ('\\"' in content)]:
        try:
            [fields] = csv.reader([content], delimiter=separator, **_STRICT, **quoting)
        except (csv.Error, ValueError):
            continue
        return fields
    return None


def _are_rows(lines: Sequence[str], separator: str) -> bool:
    """Whether lines within quotes look like rows of their own, which a stray quote swallows.

    They do if each has as many fields as the first, of the same form: with the same ending of a
    file name if the first has one, else without spaces where the first has none.
    """
    first, *others = (line.rstrip("\r\n").split(separator) for line in lines)
    at = [n for n, field in enumerate(first) if not field.lstrip().startswith('"')]
    at = [n for n in at if looks_like_picture(first[n])] or at

    def form(fields: list[str]) -> list[tuple]:
        texts = [fields[n].strip() for n in at]
        return [(" " in text, '"' in text, *_ENDING.findall(text.lower())) for text in texts]

    return bool(at) and all(
        len(fields) == len(first) and form(fields) == form(first) for fields in others
    )


def find_dialect(file: Path, kind: str, known: Sequence[str]) -> Dialect:
    """Find the separator, and the names of the columns.

    A first line such as `sep=;` names the separator. Else, of the usual separators, it is the one
    with the most known names in the first row that gives most rows the same number of fields. Ties
    go to the separator of the file's ending.

    Args:
      file: the table.
      kind: `csv` or `tsv`, by the ending of the file.
      known: names of columns that the user gave.

    Raises:
      DataError: there are too many columns.
    """
    text, usual = open_text(file), SEPARATORS[kind]
    wanted = {name.strip().lower() for name in known}

    def is_known(name: str) -> bool:
        return is_usual(name) or name.lower() in wanted

    def sample(separator: str) -> list[list[str]]:
        records = islice(read_records(text.lines(), separator), _SAMPLED)
        return [[as_unicode(field).strip(_BLANK) for field in fields] for _, fields in records]

    def fit(separator: str) -> tuple:
        first, *rows = samples[separator] or [[]]
        names = sum(map(is_known, first))
        even = sum(len(row) == len(first) for row in rows) / max(len(rows), 1)
        return len(first) > 1, names, round(even, 1), separator == usual

    candidates = (text.separator,) if text.separator else (usual, *_OTHERS)
    samples = {separator: sample(separator) for separator in candidates}
    separator = max(samples, key=fit)
    first, *_ = rows = samples[separator] or [[]]
    check_size(file, len(first))
    has_header = any(map(is_known, first)) or not any(map(looks_like_picture, first))
    names = first if has_header else _names_by_content(rows)
    unique: list[str] = []
    for number, name in enumerate(names, 1):
        name = name or f"column {number}"
        unique.append(f"{name} (column {number})" if name in unique else name)
    return Dialect(text, separator, has_header, tuple(unique))


def _names_by_content(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names for columns without a header: `image` or `url`, `caption` (the longest), `column 3`."""
    columns = list(zip_longest(*rows[:_SAMPLED], fillvalue=""))[: len(rows[0])]
    names = [f"column {number}" for number in range(1, len(columns) + 1)]
    texts = {}
    for at, cells in enumerate(columns):
        if sum(map(looks_like_picture, cells)) > len(cells) / 2:
            names[at] = "url" if cells[0].lower().startswith(ADDRESSES) else "image"
        else:
            texts[at] = sum(map(len, cells))
    if texts:
        names[max(texts, key=texts.__getitem__)] = "caption"
    return names
