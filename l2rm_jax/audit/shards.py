"""Read vectors in shards as inputs of an audit.

The result does not depend on the split into shards, nor on the file format (`.npy` or Parquet).
Rows that name the same image, or whose metadata have the same picture hash, are captions of one
image, which is represented by the vector of the first row.
"""

import hashlib
from pathlib import Path

import numpy as np

from l2rm_jax.audit.inputs import Inputs, hash_names
from l2rm_jax.data.shards import (
    CAPTION,
    Shard,
    images_of_rows,
    open_shards,
    read_columns,
    rows_of,
)
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.judging import Pairs
from l2rm_jax.run.judged_pairs import rows_of_texts

_BLOCK = 65_536  # rows read at once


def inputs_of_shards(directory: str | Path, copies: Path) -> Inputs:
    """Check vectors in shards and turn them into inputs; vectors stay on disk.

    Args:
      directory: directory of the shards.
      copies: directory for copies of vectors in Parquet files.

    Raises:
      DataError: a shard is missing, has a wrong number of rows or dimensions, or a value that is
        not finite; lists every problem.
      ConfigError: there are Parquet files, and the package pyarrow is missing.
    """
    shards, problems = open_shards(directory, copies), Problems()
    digest = hashlib.blake2b(digest_size=16)
    for side in (shards.images, shards.captions):
        digest.update(f"{side[0].array.dtype.str} {rows_of(side).shape}".encode())
        for shard in side:
            problems.attempt(_hash_shard, digest, shard)
    problems.raise_all()
    columns, count = read_columns(shards.metadata), rows_of(shards.images).shape[0]
    texts = columns.get(CAPTION) and [text or "" for text in columns[CAPTION]]
    ids, pair_image, first = images_of_rows(columns, count)
    hash_names(digest, pair_image, texts, ids, None)
    images = rows_of(shards.images, first if len(first) < count else None)
    captions, text_rows = rows_of(shards.captions), texts and rows_of_texts(texts)
    return Inputs(
        name=str(directory),
        pair_image=pair_image,
        texts=texts,
        read_pairs=lambda: Pairs(images, captions, pair_image, text_rows, texts),
        ids=ids,
        digest=digest.hexdigest(),
    )


def _hash_shard(digest: "hashlib.blake2b", shard: Shard) -> None:
    """Hash the values of a shard; raise an error that lists every row that is not finite."""
    problems = []
    for start in range(0, len(shard.array), _BLOCK):
        block = np.ascontiguousarray(shard.array[start : start + _BLOCK])
        digest.update(block)
        wrong = np.flatnonzero(~np.isfinite(block).all(axis=1))
        problems += [f"{shard.name}: row {start + row} is not finite" for row in wrong]
    if problems:
        raise DataError(*problems)
