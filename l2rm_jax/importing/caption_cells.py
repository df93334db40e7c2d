"""The captions of a cell, in every form in which JSON, pandas and NumPy write them."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int

from l2rm_jax.errors import DataError
from l2rm_jax.importing.column_names import (
    ANSWERS,
    CAPTION_FIELDS,
    CONTENT_FIELDS,
    LINES,
    PROMPTS,
    SPEAKER_FIELDS,
    field_of,
)
from l2rm_jax.importing.columns import caption_lines, text_column
from l2rm_jax.importing.limits import CAPTIONS
from l2rm_jax.importing.sources import Part, Source
from l2rm_jax.importing.text_lists import UnreadableError, as_text, parse_list

_BEGINS = r"^\s*(?:[\[{(]|array\()"  # how a list or an object begins, as text
# What looks like a list even where it cannot be read: quotes follow the bracket, or it closes at
# the end. Plain text such as "[red] cup" does not.
_LOOKS_LIKE_LIST = (
    r"^\s*(?:[\[(]\s*(?:['\"{\[]|None\b|null\b|nan\b|np\.)|\{\s*['\"]|array\("
    r"|\[[^\]]*\]\s*$|\{[^}]*\}\s*$)"
)


class Captions(NamedTuple):
    """All captions of a source.

    Attributes:
      text: the captions; null where a cell is empty.
      row: place of each caption's row; captions of a row follow each other.
      unreadable: why a cell could not be read, for which one caption stands; null for others.
    """

    text: pa.Array
    row: Int[np.ndarray, " captions"]
    unreadable: pa.Array


def read_captions(source: Source, columns: Sequence[str]) -> Captions:
    """Read the captions of one or several columns; without any, each row has an empty one.

    Raises:
      DataError: a cell has more than `CAPTIONS`.
    """
    if not columns:
        rows = sum(len(part.table) for part in source.parts)
        return _plain(pa.array([""] * rows, pa.large_string()))
    parts, start = [], 0
    for part in source.parts:
        for name in columns:
            _check_lengths(source, part, name)
        found = _together([_column_captions(part, name) for name in columns])
        if len(columns) > 1:
            order = pa.array(np.argsort(found.row, kind="stable"))
            own, why = found.text.take(order), found.unreadable.take(order)
            found = Captions(own, np.sort(found.row), why)
        parts.append(found._replace(row=start + found.row))
        start += len(part.table)
    return _together(parts)


def _together(parts: Sequence[Captions]) -> Captions:
    text, row, unreadable = zip(*parts, strict=True)
    return Captions(joined(text), np.concatenate(row), joined(unreadable))


def _plain(text: pa.Array) -> Captions:
    """Captions of cells that hold one each."""
    return Captions(text, np.arange(len(text)), pa.nulls(len(text), pa.string()))


def joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """The arrays one after the other; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _check_lengths(source: Source, part: Part, name: str) -> None:
    if name not in part.table.column_names:
        return
    column = part.table[name]
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    most = (pc.max(pc.list_value_length(column)).as_py() or 0) if is_list else 0
    if most > CAPTIONS:
        raise DataError(
            f"{source.path}: column {name}: found {most:,} captions in a cell, expected at most "
            f"{CAPTIONS:,}"
        )


def _column_captions(part: Part, name: str) -> Captions:
    """The captions of a column. Cells are read one by one only where one may be no plain text."""
    if name.endswith(LINES) and name not in part.table.column_names:
        texts = text_column(part, name.removesuffix(LINES)).to_pylist()
        return _flat([caption_lines(text) if text and text.strip() else [None] for text in texts])
    column = part.table[name] if name in part.table.column_names else None
    if column is not None and pa.types.is_nested(column.type):
        values = column.to_pylist()
        return _flat([[] if value is None else _read_or_reason(value, True) for value in values])
    text = text_column(part, name)
    may_be_list = pc.fill_null(pc.match_substring_regex(text, _BEGINS), False)
    if not pc.any(may_be_list).as_py():
        return _plain(text)
    # Where most cells look like lists, one that cannot be read is an error, and no caption.
    look_so = pc.match_substring_regex(text, _LOOKS_LIKE_LIST)
    are_lists = 2 * (pc.sum(look_so).as_py() or 0) > len(text) - text.null_count
    marks = may_be_list.to_pylist()
    return _flat(
        [
            _read_or_reason(cell, are_lists) if marked else [cell]
            for cell, marked in zip(text.to_pylist(), marks, strict=True)
        ]
    )


def _read_or_reason(value: Any, are_lists: bool) -> list[str | None] | UnreadableError:
    try:
        return captions_of(value)
    except UnreadableError as error:
        return error if are_lists or not isinstance(value, str) else [value]


def _flat(cells: Sequence[list[str | None] | UnreadableError]) -> Captions:
    texts, reasons, rows = [], [], []
    for row, cell in enumerate(cells):
        own, why = ([None], str(cell)) if isinstance(cell, UnreadableError) else (cell, None)
        texts += own
        reasons += [why] * len(own)
        rows += [row] * len(own)
    text, unreadable = pa.array(texts, pa.large_string()), pa.array(reasons, pa.string())
    return Captions(text, np.array(rows, np.int64), unreadable)


def captions_of(value: Any) -> list[str | None]:
    """The captions of a cell.

    Args:
      value: text, which may be a list or an object as JSON, Python or NumPy write it; a list; an
        object with a field such as `raw`, `caption` or `text`; a number; or nothing.

    Returns:
      The captions. Nulls in a list are left out; an empty cell has one caption, which is None.

    Raises:
      UnreadableError: a list or an object that holds no captions, or that is damaged.
    """
    if isinstance(value, str):
        return captions_of(parse_list(value)) if re.match(_BEGINS, value) else [value]
    if isinstance(value, list | tuple | set):
        return [text for each in value for text in _captions_of_item(each)]
    if isinstance(value, dict):
        if field_of(value, SPEAKER_FIELDS) and _holds_lists(value):  # turns as `datasets` has them
            turns = zip(*value.values(), strict=True)
            return captions_of([dict(zip(value, turn, strict=True)) for turn in turns])
        name = field_of(value, CAPTION_FIELDS)
        if name is None:
            raise UnreadableError(
                f"an object with {', '.join(map(str, value)) or 'no field'}, expected raw, caption "
                "or text"
            )
        return captions_of(value[name])
    return [None if value is None or value != value else as_text(value)]


def _holds_lists(value: dict) -> bool:
    """Whether all fields of an object are lists of one length."""
    lists = [each for each in value.values() if isinstance(each, list)]
    return len(lists) == len(value) and len({len(each) for each in lists}) == 1


def _captions_of_item(item: Any) -> list[str]:
    """The captions of an element of a list; text is taken as it is.

    Of a conversation, these are the answers. Parts of another type, such as pictures, have none.
    """
    if item is None or item != item:
        return []
    if isinstance(item, str | bytes):
        return [as_text(item)]
    if not isinstance(item, dict):
        raise UnreadableError(f"a list with a {type(item).__name__}, expected captions")
    speaker, content = field_of(item, SPEAKER_FIELDS), field_of(item, CONTENT_FIELDS)
    who = speaker and str(item[speaker]).strip().lower()
    if who in PROMPTS:
        return []
    if who in ANSWERS and content:
        parts = item[content] if isinstance(item[content], list) else [item[content]]
        return [text for part in parts for text in _captions_of_item(part)]
    if str(item.get("type", "text")) != "text" and field_of(item, CAPTION_FIELDS) is None:
        return []
    return [text for text in captions_of(item) if text is not None]
