"""The layout of clip-retrieval: vectors in numbered shards, `.npy` or Parquet.

The pairs do not depend on the split into shards, nor on the file format. Rows whose metadata have
the same picture hash are captions of one image; without hashes, rows with the same name and the
same vector. The image is represented by the vector of the first row.
"""

import hashlib
import weakref
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from l2rm_jax.data.columns import read_shard_columns
from l2rm_jax.data.contents import finite_blocks, hash_names
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.shards import (
    CAPTION,
    DIGEST,
    Shard,
    Shards,
    images_of_rows,
    open_shards,
    read_metadata,
    rows_of,
)
from l2rm_jax.errors import Problems


def open_shard_pairs(directory: str | Path, copies: Path | None = None) -> Pairs:
    """Check vectors in shards by reading them once, and return their pairs; they stay on disk.

    Args:
      directory: directory of the shards.
      copies: directory for copies of vectors in Parquet files; None: one that is removed with the
        vectors.

    Raises:
      DataError: a shard is missing, has a wrong number of rows or dimensions, or a value that is
        not finite; lists every problem.
      ConfigError: there are Parquet files, and the package pyarrow is missing.
    """
    with ExitStack() as temporary:
        if copies is None:
            copies = Path(temporary.enter_context(TemporaryDirectory(prefix="l2rm-")))
        pairs = _open(directory, open_shards(directory, copies))
        weakref.finalize(pairs.images, temporary.pop_all().close)
    return pairs


def _open(directory: str | Path, shards: Shards) -> Pairs:
    digest, problems = hashlib.blake2b(digest_size=16), Problems()
    for side in (shards.images, shards.captions):
        digest.update(f"{side[0].array.dtype.str} {rows_of(side).shape}".encode())
        for shard in side:
            problems.attempt(_hash_shard, digest, shard)
    problems.raise_all()
    columns, images = read_metadata(shards.metadata), rows_of(shards.images)
    texts = columns.get(CAPTION) and [text or "" for text in columns[CAPTION]]
    ids, image_of, first = images_of_rows(columns, images)
    hash_names(digest, image_of, texts, ids, None)
    return Pairs(
        rows_of(shards.images, first if len(first) < len(images) else None),
        rows_of(shards.captions),
        image_of,
        texts,
        ids,
        columns=read_shard_columns(shards.metadata, {*columns, CAPTION, DIGEST}),
        name=str(directory),
        digest=digest.hexdigest(),
    )


def _hash_shard(digest: "hashlib.blake2b", shard: Shard) -> None:
    """Hash the values of a shard; raise an error that lists every row that is not finite."""
    for block in finite_blocks(shard.name, shard.array):
        digest.update(np.ascontiguousarray(block))
