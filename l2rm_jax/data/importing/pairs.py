"""From the rows of a source to pairs: columns, captions, and which rows show the same image.

All of it works on whole columns, as a table can have millions of rows.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int, UInt8, UInt32

from l2rm_jax.data.captions import MAX_CHARACTERS
from l2rm_jax.data.importing.columns import Columns, text_column
from l2rm_jax.data.importing.rejected import Rejected
from l2rm_jax.data.importing.sources import Part, Source
from l2rm_jax.data.importing.splits import NONE, SPLITS, split_number
from l2rm_jax.errors import ConfigError

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


# White space at an end, twice, or other than a space: control characters and spaces of Unicode.
_UNEVEN = (
    r"^ | $|  |[\x00-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}]"
)


_LIST_KINDS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_BLOCK_BYTES = 1 << 18  # which stay in the processor's cache


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


class Runs(NamedTuple):
    """The image of each row; rows that follow each other and show the same one are a run.

    Attributes:
      keys: what identifies the image of each run, as text; null if its rows have none.
      lengths: number of rows of each run.
    """

    keys: pa.Array
    lengths: Int[np.ndarray, " runs"]


def _select(array: pa.Array, kept: np.ndarray) -> pa.Array:
    return array.filter(pa.array(kept)) if kept.dtype == bool else array.take(pa.array(kept))


def row_numbers(source: Source) -> list[Int[np.ndarray, " rows"]]:
    """Numbers of the rows of each part, from 1 over all parts, with gaps for skipped ones."""
    total = sum(len(part.table) for part in source.parts) + len(source.skipped)
    is_read = np.ones(total, bool)
    is_read[[row - 1 for row, _ in source.skipped]] = False
    numbers = np.flatnonzero(is_read) + 1
    ends = np.cumsum([len(part.table) for part in source.parts])
    return np.split(numbers, ends[:-1])


def read_pairs(
    source: Source,
    columns: Columns,
    images: Runs,
    rejected: Rejected,
    name_images: Callable[[Int[np.ndarray, " images"]], pa.Array] | None = None,
) -> Pairs:
    """Read captions and splits, and group the rows by image.

    Args:
      source: the rows.
      columns: which columns to read.
      images: what identifies the image of each row.
      rejected: takes the rows that are left out.
      name_images: what the user calls images, given the row in which each appears first; None if
        that is what identifies them.
    """
    for row, reason in source.skipped:
        rejected.add(row, "", reason)
    row_number = np.concatenate([np.zeros(0, np.int64), *row_numbers(source)])
    code = images.keys.dictionary_encode()
    image_of_run = code.indices.fill_null(-1).to_numpy().astype(np.int64)
    image_of_row = np.repeat(image_of_run, images.lengths)
    # Images are numbered as they appear, so a number above all before it is a first appearance.
    is_first = np.diff(np.maximum.accumulate(image_of_run), prepend=-1) > 0
    first_row = row_number[(np.cumsum(images.lengths) - images.lengths)[is_first]]
    names = code.dictionary
    names = names if name_images is None else name_images(first_row)

    text, table_row = _caption_cells(source, columns.captions)
    text = text.fill_null("")
    is_plain = _is_plain(text)
    text = text if is_plain else _on_one_line(text)
    image, row = image_of_row[table_row], row_number[table_row]
    split, split_problem = _splits_of_images(source, columns, image_of_row, len(names))
    problem = split_problem[table_row]
    for kind, is_found in _caption_problems(text, is_plain):
        problem[is_found] = kind
    problem[image < 0] = _NO_IMAGE
    first = _first_of_equals(problem, image, text)
    problem[first != np.arange(len(first))] = _DUPLICATE

    def reject(at_row: int, at_image: int, reason: str) -> None:
        rejected.add(at_row, names[int(at_image)].as_py() if at_image >= 0 else "", reason)

    has_caption = np.zeros(len(row_number), bool)
    has_caption[table_row] = True
    for at in np.flatnonzero(~has_caption):
        reject(row_number[at], image_of_row[at], "no caption")
    for at in np.flatnonzero(problem):
        which = f" of row {row[first[at]]}" if problem[at] == _DUPLICATE else ""
        reject(row[at], image[at], _REASONS[problem[at]] + which)
    pairs = Pairs(row, image, np.arange(len(row)), text, names, first_row, split, len(row))
    return pairs.take(problem == 0) if problem.any() else pairs


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


def image_names(source: Source, column: str) -> Runs:
    """What identifies the image of each row, of a column of text; null where it is empty."""
    keys, lengths = [], []
    for part in source.parts:
        runs = pc.run_end_encode(text_column(part, column))
        lengths.append(np.diff(runs.run_ends.to_numpy(), prepend=0))
        names = pc.utf8_trim_whitespace(runs.values)
        names = pc.if_else(pc.equal(pc.utf8_length(names), 0), None, names)
        if part.folder:
            folder, nothing = (pa.scalar(text, names.type) for text in (part.folder, ""))
            names = pc.binary_join_element_wise(folder, names, nothing)
        keys.append(names)
    return Runs(_joined(keys), np.concatenate(lengths))


def _joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """The arrays one after the other; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _caption_cells(
    source: Source, names: Sequence[str]
) -> tuple[pa.Array, Int[np.ndarray, " captions"]]:
    """All captions, and the place of each one's row; those of a row stand in a row."""
    texts, places, start = [], [], 0
    for part in source.parts:
        cells = [_flat_captions(part, name) for name in names]
        text, place = cells[0]
        if len(cells) > 1:
            text, place = _joined([c[0] for c in cells]), np.concatenate([c[1] for c in cells])
            order = np.argsort(place, kind="stable")
            text, place = text.take(pa.array(order)), place[order]
        texts.append(text)
        places.append(start + place)
        start += len(part.table)
    return _joined(texts), np.concatenate(places)


def _flat_captions(part: Part, name: str) -> tuple[pa.Array, Int[np.ndarray, " captions"]]:
    """The captions of a column, and the row of each; a cell may hold a list, or one as JSON."""
    column = part.table[name] if name in part.table.column_names else None
    if column is not None and any(is_kind(column.type) for is_kind in _LIST_KINDS):
        column = column.combine_chunks()
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        rows = np.repeat(np.arange(len(column)), lengths)
        flat = part._replace(table=pa.table({name: pc.list_flatten(column)}))
        return text_column(flat, name), rows
    text = text_column(part, name)
    is_list = pc.or_(pc.starts_with(text, '["'), pc.equal(text, "[]"))
    if not pc.any(is_list).as_py():
        return text, np.arange(len(text))
    cells = [_as_list(cell) for cell in text.to_pylist()]
    rows = np.repeat(np.arange(len(cells)), [len(cell) for cell in cells])
    return pa.array([caption for cell in cells for caption in cell], pa.large_string()), rows


def _as_list(cell: str | None) -> list[str | None]:
    """The captions of a cell that may be a JSON list of text."""
    if cell and cell.startswith(('["', "[]")):
        try:
            values = json.loads(cell)
        except (ValueError, RecursionError):
            return [cell]
        if all(isinstance(value, str) for value in values):
            return values
    return [cell]


def _on_one_line(text: pa.Array) -> pa.Array:
    """Captions without white space at their ends, and with single spaces inside."""
    uneven = pc.match_substring_regex(text, _UNEVEN)
    if not pc.any(uneven).as_py():
        return text
    mended = [" ".join(caption.split()) for caption in text.filter(uneven).to_pylist()]
    return pc.replace_with_mask(text, uneven, pa.array(mended, text.type))


def _is_plain(text: pa.Array) -> bool:
    """Whether all captions are ASCII with single spaces between words alone, by their bytes."""
    starts, data = _bytes_of(text)
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES + 1]
        if block.min() < ord(" ") or block.max() > 127:
            return False
        is_space = block == ord(" ")
        if (is_space[1:] & is_space[:-1]).any():
            return False
    if not len(data):
        return True
    # Where a caption is empty, these are the first or last byte of another one.
    ends = (data.take(places, mode="clip") for places in (starts[:-1], starts[1:] - 1))
    return not any((each == ord(" ")).any() for each in ends)


def _bytes_of(text: pa.Array) -> tuple[Int[np.ndarray, " captions_and_1"], UInt8[np.ndarray, " n"]]:
    """Where each caption starts in the bytes of all, with the end of the last; and these bytes."""
    _, offsets, data = text.buffers()
    starts = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    first, end = int(starts[0]), int(starts[-1])
    if data is None:
        return starts - first, np.zeros(0, np.uint8)
    return starts - first, np.frombuffer(data, np.uint8)[first:end]


def _caption_problems(
    text: pa.Array, is_plain: bool
) -> Iterator[tuple[int, Bool[np.ndarray, " captions"]]]:
    """The captions of each kind of problem, the most telling kind last."""
    length = pc.binary_length(text).to_numpy()
    long = np.flatnonzero(length > MAX_CHARACTERS)  # in bytes; characters are not more
    too_long = np.zeros(len(text), bool)
    too_long[long] = pc.utf8_length(text.take(pa.array(long))).to_numpy() > MAX_CHARACTERS
    yield _LONG, too_long
    if not is_plain:
        yield _BROKEN, pc.match_substring(text, "\ufffd").to_numpy(zero_copy_only=False)
    yield _EMPTY, length == 0


_MIX = 0x9E3779B1  # an odd number whose products spread over all bits


def _first_of_equals(
    problem: Int[np.ndarray, " captions"], image: Int[np.ndarray, " captions"], text: pa.Array
) -> Int[np.ndarray, " captions"]:
    """Number of the first caption without a problem that has the same image and text."""
    first = np.arange(len(problem))
    # Few captions repeat another one. So texts are compared only where image, length, and sum of
    # the bytes are the same.
    starts, data = _bytes_of(text)
    sizes = np.diff(starts)
    keys = (image * _MIX + sizes).astype(np.uint64) * np.uint64(_MIX)
    filled = np.flatnonzero(sizes)
    if len(filled):
        keys[filled] += np.add.reduceat(data, starts[filled], dtype=np.uint8)
    good = np.flatnonzero(problem == 0)
    keys = (keys[good] * np.uint64(_MIX) >> np.uint64(32)).astype(np.uint32)
    alike = good[_is_repeated(keys)]
    if not len(alike):
        return first
    code = text.take(pa.array(alike)).dictionary_encode()
    pair = image[alike] * len(code.dictionary) + code.indices.to_numpy()
    order = np.argsort(pair, kind="stable")
    begins = np.flatnonzero(np.diff(pair[order], prepend=-1))
    copies = np.diff(begins, append=len(order))
    first[alike[order]] = np.repeat(alike[order[begins]], copies)
    return first


def _is_repeated(keys: UInt32[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Which keys occur more than once; fast if few do."""
    ordered = np.sort(keys)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    # The upper half of the bits rules most keys out before the search for the others.
    may_repeat = np.zeros(1 << 16, bool)
    may_repeat[repeated >> 16] = True
    result = may_repeat[keys >> 16]
    if len(repeated):
        places = np.searchsorted(repeated, keys[result]).clip(max=len(repeated) - 1)
        result[result] = repeated[places] == keys[result]
    return result


def _splits_of_images(
    source: Source, columns: Columns, image_of_row: np.ndarray, images: int
) -> tuple[np.ndarray | None, np.ndarray]:
    """The split of each image by its first row, and the problem of each row with its split."""
    rows = len(image_of_row)
    if columns.split is not None:
        names = _joined([text_column(part, columns.split) for part in source.parts])
    elif any(part.split for part in source.parts):
        names = _joined(
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
