"""Turn the rows of a source into pairs: read captions and splits, group rows by image.

All of it works on whole columns, as a table can have millions of rows.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int

from l2rm_jax.data.captions import MAX_CHARACTERS
from l2rm_jax.data.segmentation import clean_text
from l2rm_jax.errors import ConfigError
from l2rm_jax.importing.caption_cells import Captions, joined, read_captions
from l2rm_jax.importing.columns import Columns, text_column
from l2rm_jax.importing.rejected import Rejected
from l2rm_jax.importing.sources import Source
from l2rm_jax.importing.splits import NONE, SPLITS, split_number
from l2rm_jax.importing.text_io import guess_encoding

# Problems of a row that the table alone shows; 0 is none.
_REASONS = (
    "",
    "another split: the same image is in another split in an earlier row",
    "unknown split:",
    f"long caption: more than {MAX_CHARACTERS} characters",
    "broken text:",
    "empty caption",
    "unreadable list:",
    "no image",
    "duplicate:",
)
(_OTHER_SPLIT, _UNKNOWN_SPLIT, _LONG, _BROKEN, _EMPTY, _UNREADABLE, _NO_IMAGE, _DUPLICATE) = range(
    1, len(_REASONS)
)


# White space at an end, twice, or other than a space; and all beyond ASCII, as it may have several
# forms, or no width.
_UNEVEN = r"^ | $|  |[^ -~]"


class TablePairs(NamedTuple):
    """The pairs of a source that passed all checks of the table.

    Attributes:
      row: row of each pair in the source, from 1.
      image: number of its image; images are numbered as they appear, with those of rejected rows.
      caption: number of its caption, counted over all rows, with rejected ones.
      text: the captions, each on one line; None if there are only vectors, or images alone. Of
        the latter, each row is a pair without a caption.
      names: the user's name for each image.
      first_row: row in which each image appears first.
      split: number of each image's split by the source; None if the source does not split.
      caption_count: number of captions, with rejected ones.
      entries: number of captions, and of rows without any: each becomes a pair or is rejected.
    """

    row: Int[np.ndarray, " pairs"]
    image: Int[np.ndarray, " pairs"]
    caption: Int[np.ndarray, " pairs"]
    text: pa.Array | None
    names: pa.Array
    first_row: Int[np.ndarray, " images"]
    split: Int[np.ndarray, " images"] | None
    caption_count: int
    entries: int

    def take(self, kept: Bool[np.ndarray, " pairs"]) -> "TablePairs":
        """Keep the pairs that a mask marks."""
        return self._replace(
            row=self.row[kept],
            image=self.image[kept],
            caption=self.caption[kept],
            text=None if self.text is None else self.text.filter(pa.array(kept)),
        )


def row_numbers(source: Source) -> Int[np.ndarray, " rows"]:
    """Numbers of all rows, from 1 over all parts, with gaps for skipped ones."""
    is_read = np.ones(source.rows, bool)
    is_read[[row - 1 for row, _ in source.skipped]] = False
    return np.flatnonzero(is_read) + 1


def places_of_rows(source: Source, rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Places of rows, which are numbered from 1 with gaps, among all cells of a column."""
    return np.searchsorted(row_numbers(source), rows)


def read_pairs(
    source: Source,
    columns: Columns,
    keys: pa.Array,
    rejected: Rejected,
    name_images: Callable[[Int[np.ndarray, " images"]], pa.Array] | None = None,
) -> TablePairs:
    """Read captions and splits, and group the rows by image.

    Args:
      source: the rows.
      columns: which columns to read.
      keys: text that identifies the image of each row; null if it has none.
      rejected: takes the rows that are left out.
      name_images: gives the user's names of images from the row in which each appears first; None
        if `keys` holds these names.
    """
    for row, reason in source.skipped:
        rejected.add(row, "", reason)
    row_number = row_numbers(source)
    code = keys.dictionary_encode()
    image_of_row = code.indices.fill_null(-1).to_numpy().astype(np.int64)
    # Images are numbered as they appear, so a number above all before it is a first appearance.
    first_row = row_number[np.diff(np.maximum.accumulate(image_of_row), prepend=-1) > 0]
    names = code.dictionary
    names = names if name_images is None else name_images(first_row)

    captions = read_captions(source, columns.captions)
    table_row, text = captions.row, _on_one_line(captions.text.fill_null(""))
    image, row = image_of_row[table_row], row_number[table_row]
    split, split_problem, split_names = _splits_of_images(source, columns, image_of_row, len(names))
    problem = split_problem[table_row]
    if columns.captions:
        for kind, is_found in _caption_problems(text, captions):
            problem[is_found] = kind
    problem[image < 0] = _NO_IMAGE
    first = _first_of_equals(problem, image, text)
    problem[first != np.arange(len(first))] = _DUPLICATE
    encoding = guess_encoding(source.texts) if (problem == _BROKEN).any() else None

    def reject(at_row: int, at_image: int, reason: str) -> None:
        rejected.add(at_row, names[int(at_image)].as_py() if at_image >= 0 else "", reason)

    def details(at: int) -> str:
        if problem[at] == _DUPLICATE:
            return f" of row {row[first[at]]}"
        if problem[at] == _UNREADABLE:
            return f" {captions.unreadable[int(at)].as_py()}"
        if problem[at] == _BROKEN:
            return " bytes that are not UTF-8" + (f", but may be {encoding}" if encoding else "")
        if problem[at] == _UNKNOWN_SPLIT:
            found = split_names[int(table_row[at])].as_py()
            return f" found {found!r}, expected a name with {', '.join(SPLITS)}; --split deals out"
        return ""

    has_caption = np.zeros(len(row_number), bool)
    has_caption[table_row] = True
    for at in np.flatnonzero(~has_caption):
        reject(row_number[at], image_of_row[at], "no caption")
    for at in np.flatnonzero(problem):
        reject(row[at], image[at], _REASONS[problem[at]] + details(at))
    entries = len(row) + int(np.count_nonzero(~has_caption)) + len(source.skipped)
    numbers = np.arange(len(row))
    kept = text if columns.captions else None
    pairs = TablePairs(row, image, numbers, kept, names, first_row, split, len(row), entries)
    return pairs.take(problem == 0) if problem.any() else pairs


def reject_pairs(
    rejected: Rejected,
    pairs: TablePairs,
    bad: Bool[np.ndarray, " pairs"],
    reasons: str | Mapping[int, str],
) -> None:
    """Reject the pairs that `bad` marks, for one reason or for a reason by number of the image."""
    for at in np.flatnonzero(bad):
        image = int(pairs.image[at])
        reason = reasons if isinstance(reasons, str) else reasons[image]
        rejected.add(pairs.row[at], pairs.names[image].as_py(), reason)


def pairs_of_arrays(images: int, captions: int) -> TablePairs:
    """Pair two arrays without a table: each image has the same number of captions, in order."""
    if captions % images:
        raise ConfigError(
            f"--caption_vectors: found {captions} rows for the {images} of --image_vectors, "
            "expected a multiple; other data need a table that pairs them (--source)"
        )
    caption, image = np.arange(captions), np.arange(captions) // (captions // images)
    first_row = np.arange(images) * (captions // images) + 1
    names = pa.array(np.arange(images)).cast(pa.string())
    return TablePairs(caption + 1, image, caption, None, names, first_row, None, captions, captions)


def _on_one_line(text: pa.Array) -> pa.Array:
    """Captions in Unicode's form NFC, without white space at their ends, and with single spaces.

    Characters without width that are no part of a word are left out; the zero-width space, which
    divides words in languages without spaces, becomes a space.
    """
    uneven = pc.match_substring_regex(text, _UNEVEN)
    if not pc.any(uneven).as_py():
        return text
    mended = [clean_text(caption) for caption in text.filter(uneven).to_pylist()]
    return pc.replace_with_mask(text, uneven, pa.array(mended, text.type))


def _caption_problems(
    text: pa.Array, captions: Captions
) -> Iterator[tuple[int, Bool[np.ndarray, " captions"]]]:
    """Yield each kind of problem and its captions, the most telling kind last."""
    length = pc.binary_length(text).to_numpy()
    long = np.flatnonzero(length > MAX_CHARACTERS)  # in bytes; characters are not more
    too_long = np.zeros(len(text), bool)
    too_long[long] = pc.utf8_length(text.take(pa.array(long))).to_numpy() > MAX_CHARACTERS
    yield _LONG, too_long
    yield _BROKEN, pc.match_substring(text, "\ufffd").to_numpy(zero_copy_only=False)
    yield _EMPTY, length == 0
    yield _UNREADABLE, captions.unreadable.is_valid().to_numpy(zero_copy_only=False)


def _first_of_equals(
    problem: Int[np.ndarray, " captions"], image: Int[np.ndarray, " captions"], text: pa.Array
) -> Int[np.ndarray, " captions"]:
    """Number of the first caption without a problem that has the same image and text."""
    first, good = np.arange(len(problem)), np.flatnonzero(problem == 0)
    text = text if len(good) == len(text) else text.take(pa.array(good))
    pair = image[good] * len(first) + text.dictionary_encode().indices.to_numpy()
    number = pa.array(pair).dictionary_encode().indices.to_numpy()
    place = np.zeros(len(good), np.int64)
    place[number[::-1]] = good[::-1]
    first[good] = place[number]
    return first


def _splits_of_images(
    source: Source, columns: Columns, image_of_row: np.ndarray, images: int
) -> tuple[np.ndarray | None, np.ndarray, pa.Array | None]:
    """Return the split of each image by its first row, and the problem and split name per row."""
    rows = len(image_of_row)
    if columns.split is not None:
        names = joined([text_column(part, columns.split) for part in source.parts])
    elif any(part.split for part in source.parts):
        names = joined(
            [
                pa.repeat(pa.scalar(part.split, pa.large_string()), len(part.table))
                for part in source.parts
            ]
        )
    else:
        return None, np.zeros(rows, np.int8), None
    code = names.fill_null("").dictionary_encode()
    known = np.array([split_number(name) for name in code.dictionary.to_pylist()], np.int64)
    split_of_row = known[code.indices.to_numpy()]
    has_image = image_of_row >= 0
    split = np.full(images, NONE)
    split[image_of_row[has_image][::-1]] = split_of_row[has_image][::-1]
    problem = np.where(split[image_of_row] != split_of_row, _OTHER_SPLIT, 0)
    problem[split_of_row == NONE] = _UNKNOWN_SPLIT
    return split, problem.astype(np.int8), names
