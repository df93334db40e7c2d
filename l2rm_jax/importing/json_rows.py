"""Rows of JSON files: lines, arrays, and the annotation files of the field."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from l2rm_jax.errors import DataError, first_line
from l2rm_jax.importing.column_names import (
    CAPTION_FIELDS,
    CAPTION_NAMES,
    IMAGE_NAMES,
    PICTURE_FIELDS,
    SPEAKER_FIELDS,
    field_of,
    is_usual,
    looks_like_picture,
)
from l2rm_jax.importing.delimited import Skipped
from l2rm_jax.importing.limits import check_size
from l2rm_jax.importing.text_io import as_unicode, open_text

_LISTS = "images", "data", "annotations", "rows", "samples"  # fields with the rows
_ANNOTATIONS = ("annotations", "completions")  # of a task of Label Studio, new and old


def read_json(file: Path) -> tuple[str, pa.Table, Skipped]:
    """Read a file of JSON: an object a line, or one document with all rows.

    Returns:
      `jsonl` or `json`; the rows; and those that are no objects.

    Raises:
      DataError: the file is neither, or a document of unknown form.
    """
    text = open_text(file)
    first = list(islice(_filled(text.lines()), 2))
    if not first:
        raise DataError(f"{file}: holds no rows, expected at least one")
    is_lines = len(first) > 1 and not first[0].startswith("[") and not _opens_document(first[0])
    if not is_lines or not any(isinstance(_parsed(line), dict) for line in first):
        try:
            document = json.loads("".join(text.lines()))
            return "json", *_table_of(_rows_of_document(document, file), file)
        except (ValueError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            # Lines of a document that was cut are rarely objects of their own.
            are_rows = (isinstance(_parsed(line), dict) for line in _filled(text.lines()))
            if _opens_document(first[0]) or not any(are_rows):
                raise DataError(
                    f"{file}: no JSON ({first_line(error, 200)}), expected an object in each line, "
                    "or one document that ends with its closing bracket"
                ) from None
    return "jsonl", *_table_of(map(_parsed, _filled(text.lines())), file)


def _opens_document(line: str) -> bool:
    """Whether this line begins a document that does not end in it."""
    is_begun = line.startswith("[") or line.endswith((",", "[", "{", ":"))
    return is_begun and isinstance(_parsed(line), Exception)


def _filled(lines: Iterator[str]) -> Iterator[str]:
    """Lines that hold something, without white space around it."""
    stripped = (line.strip() for line in lines)
    return (line for line in stripped if line)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return error


def _table_of(values: Iterator[Any] | Sequence[Any], file: Path) -> tuple[pa.Table, Skipped]:
    rows: list[Mapping[str, Any]] = []
    skipped: Skipped = []
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            rows.append(_plain_task(value))
        elif isinstance(value, Exception):
            skipped.append((number, f"no JSON: {first_line(value, 200)}"))
        else:
            skipped.append((number, f"no JSON object: found {type(value).__name__}"))
    return text_table(rows, file), skipped


def _plain_task(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a task of Label Studio the columns `image` and `caption`; other rows stay as they are.

    Captions are the texts of all annotations but cancelled ones. A task with several pictures gets
    no `image`, so that the user names one of the columns `data.NAME`.
    """
    data = row.get("data")
    annotations = next(
        (row[each] for each in _ANNOTATIONS if isinstance(row.get(each), list)), None
    )
    if not isinstance(data, dict) or annotations is None:
        return row
    done = [a for a in annotations if isinstance(a, dict) and not a.get("was_cancelled")]
    results = [each for one in done for each in one.get("result") or [] if isinstance(each, dict)]
    texts = [r.get("value") for r in results if r.get("type", "textarea") == "textarea"]
    captions = [value.get("text") for value in texts if isinstance(value, dict)]
    pictures = [v for v in data.values() if isinstance(v, str) and looks_like_picture(v)]
    image = {"image": pictures[0]} if len(pictures) == 1 else {}
    flat = [t for each in captions for t in (each if isinstance(each, list) else [each])]
    return {**row, **image, "caption": flat}


def _rows_of_document(document: Any, file: Path) -> Sequence[Any]:
    """The rows of a document, in any of the forms in which the field writes them."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        raise DataError(f"{file}: found JSON's {type(document).__name__}, expected a list of rows")
    if isinstance(document.get("annotations"), list) and isinstance(document.get("images"), list):
        return _rows_of_coco(document["images"], document["annotations"])
    if isinstance(document.get("columns"), list) and isinstance(document.get("data"), list):
        return [dict(zip(document["columns"], row, strict=False)) for row in document["data"]]
    lists = {
        name: each
        for name, each in document.items()
        if isinstance(each, list) and each and all(isinstance(row, dict) for row in each)
    }
    if lists:
        name = next((name for name in _LISTS if name in lists), None)
        if name is None and len(lists) > 1:
            raise DataError(f"{file}: found lists {', '.join(lists)}, expected one with the rows")
        return lists[name or next(iter(lists))]
    return _rows_by_name(document, file)


def _rows_by_name(document: Mapping[str, Any], file: Path) -> Sequence[Any]:
    """The rows of an object whose fields are columns, or images."""
    values = list(document.values())
    if any(map(is_usual, document)):
        if _are_columns(values, list):  # {"image": [...], "caption": [...]}
            return [dict(zip(document, row, strict=True)) for row in zip(*values, strict=True)]
        if _are_columns(values, dict):  # as pandas writes a table: {"image": {"0": ...}, ...}
            return [{name: each[at] for name, each in document.items()} for at in values[0]]
        return [document]
    if all(isinstance(each, dict) for each in values):  # {"17": {"image": ..., "caption": ...}}
        return [{"id": name, **each} for name, each in document.items()]
    if all(isinstance(each, str | list) for each in values):  # {"a.jpg": ["a dog", ...], ...}
        return [{"image": name, "caption": captions} for name, captions in document.items()]
    names = ", ".join(list(document)[:5])
    raise DataError(f"{file}: found an object with {names}, expected a list of rows")


def _are_columns(values: Sequence[Any], kind: type) -> bool:
    """Whether all values are lists of one length, or objects with the same fields."""
    if not values or not all(isinstance(each, kind) and each for each in values):
        return False
    marks = [len(each) if kind is list else list(each) for each in values]
    return all(mark == marks[0] for mark in marks)


def _rows_of_coco(images: Sequence[Any], annotations: Sequence[Any]) -> list[Any]:
    """A row for each image of COCO, with its captions; annotations of no image come last."""
    rows: list[Any] = []
    by_id: dict[str, dict[str, Any]] = {}
    for image in images:
        if isinstance(image, dict):
            image = {**image, "caption": []}
            by_id.setdefault(str(image.get("id")), image)
        rows.append(image)
    for each in annotations:
        image, caption = None, each
        if isinstance(each, dict):
            image, caption = by_id.get(str(each.get("image_id"))), each.get("caption")
        if image is None:
            rows.append({"file_name": None, "caption": [caption]})
        else:
            image["caption"].append(caption)
    return rows


def text_table(rows: Sequence[Mapping[str, Any]], file: Path) -> pa.Table:
    """A table of text of JSON objects; the fields of an object in one are columns `a.b`.

    Lists stay JSON, and objects that are a caption or a picture.

    Args:
      rows: the objects.
      file: the file that they are from, for the message.

    Raises:
      DataError: there are too many fields.
    """
    flat, names = [], {}
    for row in rows:
        flat.append(dict(_flat_fields(row)))
        names |= dict.fromkeys(flat[-1])
        check_size(file, len(names))
    return pa.table(
        {name: pa.array([row.get(name) for row in flat], pa.large_string()) for name in names}
    )


def _flat_fields(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in row.items():
        if isinstance(value, dict) and not is_cell(name, value):
            yield from _flat_fields(value, f"{prefix}{name}.")
        elif value is not None and value == value:  # NaN stands for nothing
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{as_unicode(name)}", as_unicode(text)


def is_cell(name: str, value: dict) -> bool:
    """Whether an object in a column of this name stands for a caption or a picture."""
    name, fields = name.lower(), (*CAPTION_FIELDS, *SPEAKER_FIELDS)
    return (name in CAPTION_NAMES and field_of(value, fields) is not None) or (
        name in IMAGE_NAMES and field_of(value, PICTURE_FIELDS) is not None
    )
