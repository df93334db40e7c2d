"""Write the files of an imported directory atomically."""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Int, UInt8
from pyarrow import parquet

from l2rm_jax.data.arrow_columns import whole_column
from l2rm_jax.data.content_hashes import hash_file
from l2rm_jax.data.files import replace_array
from l2rm_jax.data.npy_files import RowFile
from l2rm_jax.data.record import DATASET_FILE
from l2rm_jax.data.split_files import split_file
from l2rm_jax.importing.chunks import Block
from l2rm_jax.importing.sources import TEXTS, Source, find_files
from l2rm_jax.importing.splits import NONE, SPLITS
from l2rm_jax.importing.table_pairs import TablePairs, places_of_rows
from l2rm_jax.jobs.files import new_file, replace_lines

_BLOCK = 1 << 16  # rows of a table written at once


class Layout(NamedTuple):
    """Places of images and captions in the files of an import.

    Attributes:
      image_split: [images] number of the split, `NONE` for an image that is left out.
      image_row: [images] row within the split, in order of first appearance.
      pairs: for each split, the places of its pairs in `TablePairs`, grouped by image.
    """

    image_split: Int[np.ndarray, " images"]
    image_row: Int[np.ndarray, " images"]
    pairs: tuple[Int[np.ndarray, " pairs"], ...]

    @property
    def image_counts(self) -> tuple[int, ...]:
        """Number of images of each split."""
        return tuple(int(np.count_nonzero(self.image_split == n)) for n in range(len(SPLITS)))


def make_layout(pairs: TablePairs, split: Int[np.ndarray, " images"]) -> Layout:
    """Lay out images that have a pair, and their pairs.

    Args:
      pairs: the pairs.
      split: number of each image's split, `NONE` to leave it out.
    """
    image_split = np.full(len(split), NONE)
    used = np.unique(pairs.image)
    image_split[used] = split[used]
    image_row = np.zeros(len(split), np.int64)
    for number in range(len(SPLITS)):
        own = image_split == number
        image_row[own] = np.arange(np.count_nonzero(own))
    order = np.lexsort((pairs.caption, pairs.image))
    split_of_pair = image_split[pairs.image[order]]
    return Layout(
        image_split, image_row, tuple(order[split_of_pair == n] for n in range(len(SPLITS)))
    )


def write_rows(
    files: Sequence[Path],
    split: Int[np.ndarray, " rows"],
    row: Int[np.ndarray, " rows"],
    blocks: Iterable[Block],
    width: int | None = None,
) -> None:
    """Write rows of features to the files of their splits.

    Args:
      files: a `.npy` file for each split; an empty split gets none.
      split: number of the split of each row, `NONE` to leave it out.
      row: place of each row in its file.
      blocks: the features, with the numbers of their rows.
      width: number of vectors that each set of vectors is filled up to; None leaves them.
    """
    counts = [int(np.count_nonzero(split == number)) for number in range(len(files))]
    unfinished = [file.with_name(f"{file.name}.unfinished") for file in files]
    outs: dict[int, RowFile] = {}
    with contextlib.ExitStack() as stack:
        for numbers, features in blocks:
            if width is not None:
                features = np.pad(features, ((0, 0), (0, width - features.shape[1]), (0, 0)))
            for number in np.flatnonzero(counts).tolist():
                if number not in outs:
                    shape = (counts[number], *features.shape[1:])
                    out = RowFile(unfinished[number], features.dtype, shape)
                    outs[number] = stack.enter_context(out)
                own = split[numbers] == number
                if own.any():
                    outs[number].write(row[numbers[own]], features[own])
    for file, whole, count in zip(unfinished, files, counts, strict=True):
        if count:
            file.replace(whole)


def write_texts(
    directory: Path,
    pairs: TablePairs,
    digest: UInt8[np.ndarray, "images 16"],
    layout: Layout,
    *,
    with_rows: bool,
    with_captions: bool,
) -> None:
    """Write ids, hashes, captions and pairs of each split with images; of a table, also its rows.

    Without captions, only ids and hashes.
    """
    for number, (split, own) in enumerate(zip(SPLITS, layout.pairs, strict=True)):
        if not len(own):
            continue
        images = np.flatnonzero(layout.image_split == number)
        replace_array(split_file(directory, split, "digests"), digest[images])
        names = pairs.names.take(pa.array(images)).to_pylist()
        replace_lines(split_file(directory, split, "ids"), names)
        if not with_captions:
            continue
        if pairs.text is not None:
            texts = pairs.text.take(pa.array(own)).to_pylist()
            replace_lines(split_file(directory, split, "texts"), texts)
        image_of = layout.image_row[pairs.image[own]]
        replace_array(split_file(directory, split, "image_of"), image_of)
        if with_rows:
            replace_array(split_file(directory, split, "rows"), pairs.row[own])


def write_columns(
    directory: Path,
    source: Source,
    *,
    names: Sequence[str],
    rows: Sequence[Int[np.ndarray, " captions"]],
) -> None:
    """Write `{split}_columns.parquet` for each split, one row per caption.

    Args:
      directory: directory of the import.
      source: the rows.
      names: the columns to write; without any, no file.
      rows: for each split, the row of the source of each caption, from 1; an empty split has no
        file.
    """
    if not names:
        return
    tables = [part.table for part in source.parts]
    table = pa.table({name: whole_column(tables, name).combine_chunks() for name in names})
    for split, own in zip(SPLITS, rows, strict=True):
        if not len(own):
            continue
        places = places_of_rows(source, own)
        file = split_file(directory, split, "columns")
        file.unlink(missing_ok=True)  # of an import that was stopped
        with (
            new_file(file) as unfinished,
            unfinished.open("wb") as out,
            parquet.ParquetWriter(out, table.schema) as writer,
        ):
            for start in range(0, len(places), _BLOCK):
                writer.write_table(table.take(pa.array(places[start : start + _BLOCK])))


def hash_source(kind: str, path: Path) -> list[str] | None:
    """Hash the files of a source whose rows can be copied, in order; None for other kinds.

    Of vectors in shards, it is the record of their import, which has the hashes of their source.

    Args:
      kind: kind of the source (`sources.Source`).
      path: the file, directory or pattern of files.
    """
    if kind == "shards" and (path / DATASET_FILE).is_file():
        return [hash_file(path / DATASET_FILE)]
    if kind not in (*TEXTS, "parquet", "webdataset"):
        return None
    return [hash_file(file) for file in find_files(path)[1]]
