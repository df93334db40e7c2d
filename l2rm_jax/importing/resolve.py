"""Plan an import: resolve its pairs and its pictures or vectors before anything is encoded."""

import hashlib
import logging
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from l2rm_jax.data.files import open_array
from l2rm_jax.data.shards import ShardRows
from l2rm_jax.errors import ConfigError, DataError, nearest_flag
from l2rm_jax.importing import pictures as photographs
from l2rm_jax.importing.columns import Columns, find_columns
from l2rm_jax.importing.rejected import Rejected
from l2rm_jax.importing.request import Request
from l2rm_jax.importing.sources import Source, open_source
from l2rm_jax.importing.table_pairs import (
    TablePairs,
    pairs_of_arrays,
    places_of_rows,
    read_pairs,
)

_log = logging.getLogger(__name__)


class Plan(NamedTuple):
    """The pairs and features to import, before anything is encoded.

    Attributes:
      pairs: the pairs.
      source: the rows; None for arrays alone.
      columns: the columns that were read; None for arrays alone.
      pictures: the pictures; None if the image vectors are given.
      image_vectors: the given vectors, memory-mapped.
      caption_vectors: likewise.
      digests: [images] hash of each picture, where the source says it.
      files: hash of the names and times of the files of vectors in shards; "" for others.
      encoder: description of the encoder of vectors in shards, if they have one.
    """

    pairs: TablePairs
    source: Source | None
    columns: Columns | None
    pictures: photographs.Pictures | None
    image_vectors: np.ndarray | ShardRows | None
    caption_vectors: np.ndarray | ShardRows | None
    digests: np.ndarray | None = None
    files: str = ""
    encoder: dict[str, Any] | None = None

    @property
    def is_gallery(self) -> bool:
        """Whether there are images alone, to be searched."""
        return self.columns is not None and not self.columns.captions


def read_plan(request: Request, work: Path, rejected: Rejected) -> Plan:
    """Read the source up to pairs; nothing is encoded."""
    image_vectors = caption_vectors = None
    if request.image_vectors:
        image_vectors = _open_vectors(request.image_vectors, "image_vectors")
    if request.caption_vectors:
        caption_vectors = _open_vectors(request.caption_vectors, "caption_vectors")
    if not request.source:
        pairs = pairs_of_arrays(len(image_vectors), len(caption_vectors))
        return Plan(pairs, None, None, None, image_vectors, caption_vectors)
    named = [request.image_column, *request.caption_columns]
    source = open_source(request.source, work / "source", named)
    columns = find_columns(
        source,
        request.image_column,
        request.caption_columns,
        by_shares=bool(request.split),
        is_encoded=request.is_encoded,
    )
    _log.info("%s (%s): %s", source.path, source.kind, columns.describe())
    if caption_vectors is not None and not columns.captions:
        raise ConfigError("--caption_vectors requires captions in --source, which has images alone")
    base = Path(request.pictures) if request.pictures else source.base
    keys, cells = photographs.image_keys(source, columns, base if request.is_encoded else None)
    name_images = None if cells is None else partial(photographs.name_cells, source, cells)
    pairs = read_pairs(source, columns, keys, rejected, name_images)
    pictures = None
    if request.is_encoded:
        row = None if cells is None else places_of_rows(source, pairs.first_row)
        prefix = "" if cells is not None else photographs.moved_prefix(base, pairs.names)
        if prefix:
            _log.info("names are looked up in %s without %s", base, prefix)
        pictures = photographs.Pictures(base, pairs.names, cells, row, prefix)
    else:
        _check_rows("--image_vectors", image_vectors, len(pairs.names), "images", source)
        _check_rows("--caption_vectors", caption_vectors, pairs.caption_count, "captions", source)
    return Plan(pairs, source, columns, pictures, image_vectors, caption_vectors)


def _open_vectors(path: str, flag: str) -> Float[np.ndarray, "rows ..."]:
    """Open the array of a flag, memory-mapped."""
    if not Path(path).exists():
        raise DataError(f"{path}: no such file", hint=nearest_flag(flag, path))
    array = open_array(Path(path))
    if array.ndim not in (2, 3) or array.dtype not in (np.float16, np.float32, np.float64):
        raise DataError(
            f"{path}: found {array.dtype} {list(array.shape)}, expected float16, float32 or "
            "float64, [rows, dimensions] or [rows, vectors, dimensions]"
        )
    return array


def _check_rows(flag: str, array: np.ndarray | None, count: int, what: str, source: Source) -> None:
    """Check the length of an array; report unreadable rows first."""
    if array is None or len(array) == count:
        return
    found = f"{flag}: found {len(array)} rows for the {count} {what} of --source"
    if source.skipped:
        row, reason = source.skipped[0]
        raise DataError(
            f"{source.path}: {len(source.skipped):,} of {source.rows:,} rows cannot be read, so "
            f"that vectors cannot be assigned ({found}); the first is row {row}: {reason}"
        )
    raise DataError(f"{found}, expected one for each")


def hash_pairs(pairs: TablePairs) -> str:
    """Hash all fields of the pairs that the result depends on."""
    digest = hashlib.blake2b(digest_size=16)
    for array in (pairs.row, pairs.image, pairs.caption, pairs.split):
        digest.update(b"" if array is None else np.ascontiguousarray(array, np.int64))
    for texts in (pairs.names, pairs.text):
        if texts is not None:
            for start in range(0, len(texts), 1 << 16):
                digest.update("\n".join(texts[start : start + (1 << 16)].to_pylist()).encode())
    return digest.hexdigest()
