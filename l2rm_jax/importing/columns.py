"""Find the columns of a source that hold the images, the captions and the splits."""

import difflib
import logging
import re
import shlex
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from l2rm_jax.data.arrow_columns import cast_column, column_type
from l2rm_jax.data.captions import MAX_CHARACTERS
from l2rm_jax.data.shards import DIGEST
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.importing.column_names import (
    CAPTION_NAMES,
    FILE_NAMES,
    FOLDER_NAMES,
    IMAGE_NAMES,
    LINES,
    PICTURE_ENDINGS,
    SPLIT_NAMES,
    looks_like_picture,
)
from l2rm_jax.importing.samples import KEY, TEXT_ENDINGS
from l2rm_jax.importing.sources import SAMPLES, Part, Source

_log = logging.getLogger(__name__)

_SAMPLED = 100  # cells that show whether a column holds folders, or a column of text lists
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)
_MOST = 0.9  # share of texts with several lines from which on each line is a caption


class Columns(NamedTuple):
    """The columns of a source that an import reads.

    Attributes:
      image: columns with the image; of several, the first that is not empty counts.
      captions: columns with captions; none where the source has images alone, for a gallery.
      split: column with the name of the split; None if there is none.
      folder: column with the folder that the names in `image` are in, as in Karpathy's file of
        COCO; None if they are complete.
      further: other columns, which are kept beside the captions.
    """

    image: tuple[str, ...]
    captions: tuple[str, ...]
    split: str | None
    folder: str | None = None
    further: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe the columns as a part of a line."""
        folder = f"{self.folder}/" if self.folder else ""
        split = f", split from {self.split}" if self.split else ""
        captions = (
            f"captions from {' and '.join(self.captions)}" if self.captions else "no captions"
        )
        return f"images from {folder}{' or '.join(self.image)}, {captions}{split}"


def find_columns(
    source: Source, image: str, captions: Sequence[str], by_shares: bool, is_encoded: bool
) -> Columns:
    """Find the columns to read: those that the flags name, else those with usual names.

    Args:
      source: the rows.
      image: value of `--image_column`; "" guesses.
      captions: values of `--caption_column`.
      by_shares: ignore a column of splits, as `--split` was given.
      is_encoded: whether pictures are read; without, samples are known by their names.

    Raises:
      ConfigError: a column does not exist, or none has a usual name.
      DataError: no row could be read.
    """
    names = list(dict.fromkeys(name for part in source.parts for name in part.table.column_names))
    if not names:
        row, reason = source.skipped[0]
        raise DataError(f"{source.path}: no row can be read; row {row}: {reason}")
    # Names may be written in any case and with spaces around them, by the table and by the flags.
    by_name = {name.strip().lower(): name for name in reversed(names)}

    def named(flag: str, name: str) -> str:
        found = name if name in names else by_name.get(name.strip().lower())
        if found is None and flag == "caption" and name.endswith(LINES):
            return named(flag, name.removesuffix(LINES)) + LINES
        if found is None:
            near = difflib.get_close_matches(name.strip().lower(), by_name, n=1)
            hint = f"--{flag}_column={shlex.quote(by_name[near[0]])}" if near else None
            raise _column_error(source, f"--{flag}_column: no column {name!r}", names, hint)
        return found

    def usual(wanted: Sequence[str]) -> list[str]:
        # A file of a sample counts before a field of its JSON, and that before other fields.
        fields = [f"{prefix}{name}" for prefix in ("", "json.") for name in wanted]
        fields += [each for name in wanted for each in by_name if each.endswith(f".{name}")]
        return [by_name[name] for name in dict.fromkeys(fields) if name in by_name]

    caption_columns = tuple(named("caption", name) for name in captions)
    split = None if by_shares else next(iter(usual(SPLIT_NAMES)), None)
    others = [name for name in usual(IMAGE_NAMES) if name not in caption_columns]
    if image:
        image_columns = (named("image", image),)
    elif source.kind in SAMPLES:
        pictures = [n for n in names if _ending(n) in PICTURE_ENDINGS and n not in caption_columns]
        image_columns = tuple(pictures) if is_encoded else (KEY,)
    else:
        image_columns = tuple(others[:1])
    if not image_columns:
        raise _column_error(source, "--image_column: none looks like the image's", names)
    if not caption_columns:
        found = [name for name in usual(CAPTION_NAMES) if name not in image_columns]
        if not found and source.kind in SAMPLES:
            found = [name for name in names if _ending(name) in TEXT_ENDINGS]
        caption_columns = tuple(found[:1])
        if caption_columns and source.kind in SAMPLES:
            caption_columns = (_by_lines(source, caption_columns[0]),)
    known = {KEY, *usual(IMAGE_NAMES), *usual(SPLIT_NAMES), *image_columns}
    if not caption_columns and not known.issuperset(names):
        raise _column_error(source, "--caption_column: none looks like the captions'", names)
    folder = None
    if not image and _holds_folders(source, image_columns[0]):
        file = next((name for name in usual(FILE_NAMES) if name != image_columns[0]), None)
        if file is not None:
            folder, image_columns = image_columns[0], (file,)
    columns = Columns(image_columns, caption_columns, split, folder)
    further = _further_columns(source, columns) if caption_columns else ()
    return columns._replace(further=further)


def _further_columns(source: Source, columns: Columns) -> tuple[str, ...]:
    """Name the columns to keep: text, numbers, bools and dates that are not read otherwise.

    Columns of bytes or lists are left out, and so are lists written as text.
    """
    captions = {*columns.captions, *(name.removesuffix(LINES) for name in columns.captions)}
    read = {KEY, DIGEST, *columns.image, *captions, columns.split, columns.folder}
    tables = [part.table for part in source.parts]
    names = dict.fromkeys(name for table in tables for name in table.column_names)
    others = [name for name in names if name not in read]
    return tuple(n for n in others if column_type(tables, n) and not _holds_lists(tables, n))


def _holds_lists(tables: Sequence[pa.Table], name: str) -> bool:
    """Whether the first cells of a column are lists or objects, written as text."""
    kind = column_type(tables, name)
    if kind != pa.large_string():
        return False
    first = [table[name][:_SAMPLED] for table in tables if name in table.column_names]
    sampled = chain(*(cast_column(cells, kind).to_pylist() for cells in first))
    texts = [text.strip() for text in sampled if text and text.strip()]
    return bool(texts) and all(map(_LIST.fullmatch, texts))


def caption_lines(text: str) -> list[str]:
    """Split a text that is not blank into one caption per line.

    A text of paragraphs or of broken lines is one caption, and so is one that is too long for any.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    goes_on = lines[0][:1].isupper() and all(line[:1].islower() for line in lines[1:])
    return [text] if "" in lines or goes_on or len(text) > MAX_CHARACTERS else lines


def _by_lines(source: Source, name: str) -> str:
    """The column of a text, or of its lines where most texts have several."""
    filled, several = 0, 0
    for part in source.parts:
        texts = text_column(part, name)
        texts = texts.filter(pc.match_substring_regex(texts, r"\S").fill_null(False))
        filled += len(texts)
        texts = texts.filter(pc.match_substring_regex(texts, r"\S\s*\n\s*\S"))
        several += sum(len(caption_lines(text)) > 1 for text in texts.to_pylist())
    if not several:
        return name
    found = f"{several:,} of {filled:,} texts have several lines"
    if several >= _MOST * filled:
        _log.info("%s: one caption per line (one per text: --caption_column=%s)", found, name)
        return f"{name}{LINES}"
    _log.warning(
        "%s: one caption per text (one per line: --caption_column=%s%s)", found, name, LINES
    )
    return name


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _holds_folders(source: Source, name: str) -> bool:
    """Whether a column of file paths holds no names of pictures."""
    if name.strip().lower() not in FOLDER_NAMES:
        return False
    cells = [cell for part in source.parts for cell in text_column(part, name)[:_SAMPLED]]
    texts = [cell.as_py() for cell in cells[:_SAMPLED] if cell.is_valid]
    return not any(map(looks_like_picture, texts))


def _column_error(
    source: Source, problem: str, names: Sequence[str], hint: str | None = None
) -> ConfigError:
    expected = f"expected one of the columns of {source.path}: {', '.join(names)}"
    return ConfigError(f"{problem}, {expected}", hint=hint)


def text_column(part: Part, name: str) -> pa.Array:
    """A column as text; a column that the part lacks is empty.

    Raises:
      ConfigError: the column holds neither text nor numbers.
    """
    if name not in part.table.column_names:
        return pa.nulls(len(part.table), pa.large_string())
    column = part.table[name]
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        cells = [cell and cell.decode("utf-8", "replace") for cell in column.to_pylist()]
        return pa.array(cells, pa.large_string())
    try:
        # Large first: the chunks together may hold more than 2 GiB.
        return column.cast(pa.large_string()).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise ConfigError(
            f"column {name}: found {column.type}, expected text, or lists of text for captions"
        ) from None
