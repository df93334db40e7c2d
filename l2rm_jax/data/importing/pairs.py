"""From the rows of a source to pairs: columns, captions, and which rows show the same image.

All of it works on whole columns, as a table can have millions of rows.
"""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int

from l2rm_jax.data.captions import MAX_CHARACTERS
from l2rm_jax.data.importing.rejected import Rejected
from l2rm_jax.data.importing.sources import Part, Source
from l2rm_jax.data.importing.splits import NONE, SPLITS, split_number
from l2rm_jax.errors import ConfigError

# Usual names of columns, the most specific first.
_IMAGE_NAMES = (
    *("filepath", "file_path", "image_path", "image_file", "file_name", "filename", "image", "img"),
    *("path", "file", "picture", "photo", "jpg", "jpeg", "png", "webp", "image_id", "id"),
)
_CAPTION_NAMES = (
    *("title", "caption", "captions", "text", "txt", "sentence", "sentences", "description"),
    *("raw", "alt_text", "alt", "json.caption", "json.captions", "json.text", "comment"),
)
_SPLIT_NAMES = ("split",)
_ARCHIVED_PICTURES = ("jpg", "jpeg", "png", "webp")  # a sample of an archive has one of these


# What can be wrong with a row, as far as the table says; 0 is nothing.
_REASONS = (
    "",
    "another split: the same image is in another split in an earlier row",
    f"unknown split: expected {', '.join(SPLITS)}",
    f"long caption: more than {MAX_CHARACTERS} characters",
    "broken text: bytes that are not UTF-8",
    "empty caption",
    "no image",
    "duplicate:",
)
_OTHER_SPLIT, _UNKNOWN_SPLIT, _LONG, _BROKEN, _EMPTY, _NO_IMAGE, _DUPLICATE = range(1, 8)


class Columns(NamedTuple):
    """The columns of a source that an import reads.

    Attributes:
      image: columns with the image; of several, the first that is not empty counts.
      captions: columns with captions, one or several.
      split: column with the name of the split; None if there is none.
    """

    image: tuple[str, ...]
    captions: tuple[str, ...]
    split: str | None


class Pairs(NamedTuple):
    """The pairs of a source that are right as far as the table alone says.

    Attributes:
      row: row of each pair in the source, from 1.
      image: number of its image; images are numbered as they appear, with those of rejected rows.
      caption: number of its caption, counted over all rows, with rejected ones.
      text: the captions, each on one line; None if there are only vectors.
      names: what the user calls each image.
      first_row: row in which each image appears first.
      split: number of each image's split by the source; None if the source does not split.
      caption_count: number of captions, with rejected ones.
    """

    row: Int[np.ndarray, " pairs"]
    image: Int[np.ndarray, " pairs"]
    caption: Int[np.ndarray, " pairs"]
    text: pa.Array | None
    names: pa.Array
    first_row: Int[np.ndarray, " images"]
    split: Int[np.ndarray, " images"] | None
    caption_count: int

    def take(self, kept: np.ndarray) -> "Pairs":
        """Keep some of the pairs, by a mask or by their places."""
        return self._replace(
            row=self.row[kept],
            image=self.image[kept],
            caption=self.caption[kept],
            text=None if self.text is None else _select(self.text, kept),
        )


def _select(array: pa.Array, kept: np.ndarray) -> pa.Array:
    return array.filter(pa.array(kept)) if kept.dtype == bool else array.take(pa.array(kept))


def find_columns(source: Source, image: str, captions: Sequence[str], by_shares: bool) -> Columns:
    """Find the columns to read: those that the flags name, else those with usual names.

    Args:
      source: the rows.
      image: value of `--image_column`; "" guesses.
      captions: values of `--caption_column`.
      by_shares: ignore a column of splits, as `--split` was given.

    Raises:
      ConfigError: a column does not exist, or none has a usual name.
    """
    names = list(dict.fromkeys(name for part in source.parts for name in part.table.column_names))
    for flag, name in [("image", image), *(("caption", name) for name in captions)]:
        if name and name not in names:
            raise _column_error(source, f"--{flag}_column: no column {name!r}", names)
    by_name = {name.lower(): name for name in reversed(names)}
    usual = [by_name[name] for name in _IMAGE_NAMES if name in by_name and by_name[name] != image]
    image_columns = (image,) if image else tuple(usual[:1])
    if not image and source.kind == "webdataset":
        image_columns = tuple(name for name in usual if name in _ARCHIVED_PICTURES)
    if not image_columns:
        raise _column_error(source, "--image_column: none looks like the image's", names)
    usual = [by_name[name] for name in _CAPTION_NAMES if name in by_name]
    caption_columns = tuple(captions) or tuple(n for n in usual if n not in image_columns)[:1]
    if not caption_columns:
        raise _column_error(source, "--caption_column: none looks like the captions'", names)
    split = next((by_name[name] for name in _SPLIT_NAMES if name in by_name), None)
    return Columns(image_columns, caption_columns, None if by_shares else split)


def _column_error(source: Source, problem: str, names: Sequence[str]) -> ConfigError:
    return ConfigError(f"{problem}, expected one of those of {source.path}: {', '.join(names)}")


def row_numbers(source: Source) -> list[Int[np.ndarray, " rows"]]:
    """Numbers of the rows of each part, from 1 over all parts, with gaps for skipped ones."""
    total = sum(len(part.table) for part in source.parts) + len(source.skipped)
    skipped = np.array([row for row, _ in source.skipped], np.int64)
    numbers = np.setdiff1d(np.arange(1, total + 1), skipped, assume_unique=True)
    ends = np.cumsum([len(part.table) for part in source.parts])
    return np.split(numbers, ends[:-1])


def read_pairs(
    source: Source,
    columns: Columns,
    images: pa.Array,
    rejected: Rejected,
) -> Pairs:
    """Read captions and splits, and group the rows by image.

    Args:
      source: the rows.
      columns: which columns to read.
      images: [rows] what identifies the image of each row, as text; null if it has none.
      rejected: takes the rows that are left out.
    """
    for row, reason in source.skipped:
        rejected.add(row, "", reason)
    row_number = np.concatenate([np.zeros(0, np.int64), *row_numbers(source)])
    has_image = images.is_valid().to_numpy(zero_copy_only=False)
    grouped = images.dictionary_encode()
    image_of_row = grouped.indices.fill_null(-1).to_numpy().astype(np.int64)
    names = grouped.dictionary
    first_row = np.zeros(len(names), np.int64)
    first_row[image_of_row[has_image][::-1]] = row_number[has_image][::-1]

    text, table_row = _caption_cells(source, columns.captions)
    text = _on_one_line(text)
    image, row = image_of_row[table_row], row_number[table_row]
    split, split_problem = _splits_of_images(source, columns, image_of_row, len(names))
    problem = split_problem[table_row]
    for kind, is_found in _caption_problems(text):
        problem[is_found] = kind
    problem[image < 0] = _NO_IMAGE
    first = _first_of_equals(problem, image, text)
    problem[first != np.arange(len(first))] = _DUPLICATE

    def reject(at_row: int, at_image: int, reason: str) -> None:
        rejected.add(at_row, names[int(at_image)].as_py() if at_image >= 0 else "", reason)

    for at in np.setdiff1d(np.arange(len(row_number)), table_row):
        reject(row_number[at], image_of_row[at], "no caption")
    for at in np.flatnonzero(problem):
        which = f" of row {row[first[at]]}" if problem[at] == _DUPLICATE else ""
        reject(row[at], image[at], _REASONS[problem[at]] + which)
    pairs = Pairs(row, image, np.arange(len(row)), text, names, first_row, split, len(row))
    return pairs.take(problem == 0)


def pairs_of_arrays(images: int, captions: int) -> Pairs:
    """The pairs of two arrays without a table: as many captions for each image, in order."""
    if captions % images:
        raise ConfigError(
            f"--caption_vectors: found {captions} rows for the {images} of --image_vectors, "
            "expected a multiple; other data need a table that pairs them (--source)"
        )
    caption, image = np.arange(captions), np.arange(captions) // (captions // images)
    first_row = np.arange(images) * (captions // images) + 1
    names = pa.array(np.arange(images)).cast(pa.string())
    return Pairs(caption + 1, image, caption, None, names, first_row, None, captions)


def text_column(part: Part, name: str) -> pa.Array:
    """A column as text; a column that the part lacks is empty.

    Raises:
      ConfigError: the column holds neither text nor numbers.
    """
    if name not in part.table.column_names:
        return pa.nulls(len(part.table), pa.large_string())
    column = part.table[name].combine_chunks()
    try:
        return column.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise ConfigError(
            f"column {name}: found {column.type}, expected text, or lists of text for captions"
        ) from None


def image_names(source: Source, column: str) -> pa.Array:
    """What identifies the image of each row, of a column of text; null where it is empty."""
    columns = []
    for part in source.parts:
        names = pc.utf8_trim_whitespace(text_column(part, column))
        names = pc.if_else(pc.equal(pc.utf8_length(names), 0), None, names)
        if part.folder:
            names = pc.binary_join_element_wise(part.folder, names, "")
        columns.append(names)
    return pa.concat_arrays(columns)


def _caption_cells(
    source: Source, names: Sequence[str]
) -> tuple[pa.Array, Int[np.ndarray, " captions"]]:
    """All captions, and the place of each one's row; those of a row stand in a row."""
    texts, places, start = [], [], 0
    for part in source.parts:
        cells = [_flat_captions(part, name) for name in names]
        text, place = pa.concat_arrays([c[0] for c in cells]), np.concatenate([c[1] for c in cells])
        if len(cells) > 1:
            order = np.argsort(place, kind="stable")
            text, place = text.take(pa.array(order)), place[order]
        texts.append(text)
        places.append(start + place)
        start += len(part.table)
    return pa.concat_arrays(texts), np.concatenate(places)


def _flat_captions(part: Part, name: str) -> tuple[pa.Array, Int[np.ndarray, " captions"]]:
    """The captions of a column, and the row of each; a cell may hold a list, or one as JSON."""
    if name in part.table.column_names:
        column = part.table[name].combine_chunks()
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            rows = pc.list_parent_indices(column).to_numpy().astype(np.int64)
            flat = part._replace(table=pa.table({name: pc.list_flatten(column)}))
            return text_column(flat, name), rows
    text = text_column(part, name)
    is_list = pc.and_(pc.starts_with(text, '["'), pc.ends_with(text, '"]')).fill_null(False)
    if not pc.any(is_list).as_py():
        return text, np.arange(len(text))
    cells = [_as_list(cell) for cell in text.to_pylist()]
    rows = np.repeat(np.arange(len(cells)), [len(cell) for cell in cells])
    return pa.array([caption for cell in cells for caption in cell], pa.large_string()), rows


def _as_list(cell: str | None) -> list[str | None]:
    """The captions of a cell that may be a JSON list of text."""
    if cell and cell.startswith('["'):
        try:
            values = json.loads(cell)
        except (ValueError, RecursionError):
            return [cell]
        if all(isinstance(value, str) for value in values):
            return values
    return [cell]


def _on_one_line(text: pa.Array) -> pa.Array:
    """Captions without white space at their ends, and with single spaces inside."""
    text = pc.utf8_trim_whitespace(text.fill_null(""))
    uneven = np.zeros(len(text), bool)
    for space in ("  ", "\n", "\r", "\t"):
        uneven |= pc.match_substring(text, space).to_numpy(zero_copy_only=False)
    if not uneven.any():
        return text
    mended = [" ".join(caption.split()) for caption in _select(text, uneven).to_pylist()]
    return pc.replace_with_mask(text, pa.array(uneven), pa.array(mended, text.type))


def _caption_problems(text: pa.Array) -> Iterator[tuple[int, Bool[np.ndarray, " captions"]]]:
    """The captions of each kind of problem, the most telling kind last."""
    length = pc.utf8_length(text).to_numpy()
    yield _LONG, length > MAX_CHARACTERS
    yield _BROKEN, pc.match_substring(text, "\ufffd").to_numpy(zero_copy_only=False)
    yield _EMPTY, length == 0


def _first_of_equals(
    problem: Int[np.ndarray, " captions"], image: Int[np.ndarray, " captions"], text: pa.Array
) -> Int[np.ndarray, " captions"]:
    """Number of the first caption without a problem that has the same image and text."""
    first = np.arange(len(problem))
    good = np.flatnonzero(problem == 0)
    code = text.dictionary_encode()
    keys = image[good] * len(code.dictionary) + code.indices.to_numpy()[good]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    first[good[order]] = np.repeat(good[order[starts]], sizes)
    return first


def _splits_of_images(
    source: Source, columns: Columns, image_of_row: np.ndarray, images: int
) -> tuple[np.ndarray | None, np.ndarray]:
    """The split of each image by its first row, and the problem of each row with its split."""
    rows = len(image_of_row)
    if columns.split is not None:
        names = pa.concat_arrays([text_column(part, columns.split) for part in source.parts])
    elif any(part.split for part in source.parts):
        names = pa.concat_arrays(
            [
                pa.repeat(pa.scalar(part.split, pa.large_string()), len(part.table))
                for part in source.parts
            ]
        )
    else:
        return None, np.zeros(rows, np.int8)
    code = names.fill_null("").dictionary_encode()
    known = np.array([split_number(name) for name in code.dictionary.to_pylist()], np.int64)
    split_of_row = known[code.indices.to_numpy()]
    has_image = image_of_row >= 0
    split = np.full(images, NONE)
    split[image_of_row[has_image][::-1]] = split_of_row[has_image][::-1]
    problem = np.where(split[image_of_row] != split_of_row, _OTHER_SPLIT, 0)
    problem[split_of_row == NONE] = _UNKNOWN_SPLIT
    return split, problem.astype(np.int8)
