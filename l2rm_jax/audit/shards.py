"""Vectors in shards as inputs of an audit.

How rows are divided into shards, and whether vectors lie in `.npy` or Parquet files, changes
nothing. Rows that name the same image, or show the same picture where the metadata have a hash of
it, are captions of one image, whose vector is that of the first.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from l2rm_jax.audit.inputs import Inputs, hash_names
from l2rm_jax.data.shards import (
    CAPTION,
    DIGEST,
    Shard,
    name_column,
    open_shards,
    read_columns,
    rows_of,
)
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.judging import Pairs
from l2rm_jax.run.judged_pairs import rows_of_texts

_BLOCK = 65_536  # rows that are read at once


def inputs_of_shards(directory: str | Path, copies: Path) -> Inputs:
    """Check vectors in shards and turn them into inputs; vectors stay on disk.

    Args:
      directory: where the shards lie.
      copies: directory for copies of vectors in Parquet files.

    Raises:
      DataError: a shard is missing, has another number of rows or of dimensions than it should, or
        a value that is not finite; lists every problem.
      ConfigError: there are Parquet files, and the package pyarrow is missing.
    """
    shards, problems = open_shards(directory, copies), Problems()
    digest = hashlib.blake2b(digest_size=16)
    for side in (shards.images, shards.captions):
        digest.update(f"{side[0].array.dtype.str} {rows_of(side).shape}".encode())
        for shard in side:
            problems.attempt(_hash_shard, digest, shard)
    problems.raise_all()
    columns = read_columns(shards)
    texts = columns.get(CAPTION) and [text or "" for text in columns[CAPTION]]
    name = name_column(list(columns))
    names = list(map(str, columns[name] if name else range(rows_of(shards.images).shape[0])))
    keys = [key or name for key, name in zip(columns.get(DIGEST, names), names, strict=True)]
    pair_image, first = _images_of(keys)
    ids = [names[row] for row in first] if name else list(map(str, range(len(first))))
    hash_names(digest, pair_image, texts, ids, None)
    images = rows_of(shards.images, first if len(first) < len(names) else None)
    return Inputs(
        name=str(directory),
        pairs=Pairs(
            images,
            rows_of(shards.captions),
            pair_image,
            text_rows=texts and rows_of_texts(texts),
            texts=texts,
        ),
        ids=ids,
        caption_ids=None,
        pictures=None,
        truth=None,
        digest=digest.hexdigest(),
    )


def _images_of(
    keys: Sequence[str],
) -> tuple[Int[np.ndarray, " pairs"], Int[np.ndarray, " images"]]:
    """The image of each row, counted in the order of the rows, and the first row of each image."""
    number: dict[str, int] = {}
    pair_image = np.array([number.setdefault(key, len(number)) for key in keys])
    return pair_image, np.unique(pair_image, return_index=True)[1]


def _hash_shard(digest: "hashlib.blake2b", shard: Shard) -> None:
    """Hash the values of a shard; lists every row that is not finite."""
    problems = []
    for start in range(0, len(shard.array), _BLOCK):
        block = np.ascontiguousarray(shard.array[start : start + _BLOCK])
        digest.update(block)
        wrong = np.flatnonzero(~np.isfinite(block).all(axis=1))
        problems += [f"{shard.name}: row {start + row} is not finite" for row in wrong]
    if problems:
        raise DataError(*problems)
