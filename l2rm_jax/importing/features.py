"""Encode, read and check the features of images and captions, and write them by split."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8

from l2rm_jax.console import progress_bar
from l2rm_jax.data.files import replace_array
from l2rm_jax.data.npy_files import still_whole
from l2rm_jax.data.shards import ShardRows
from l2rm_jax.data.split_files import split_file
from l2rm_jax.importing import chunks, writing
from l2rm_jax.importing.pictures import DIGEST_BYTES
from l2rm_jax.importing.rejected import Rejected
from l2rm_jax.importing.resolve import Plan
from l2rm_jax.importing.splits import NONE, SPLITS
from l2rm_jax.importing.table_pairs import TablePairs, reject_pairs
from l2rm_jax.pretrained.feature_encoder import Encoder

_BLOCK_BYTES = 1 << 25
Vectors = Float[np.ndarray, "rows ..."] | ShardRows


class Images(NamedTuple):
    """The features of the images.

    Attributes:
      digest: [images] hash of each image's content.
      is_right: [images] which images can be used.
      blocks: the features.
      done: number of converted pictures, by the kind of conversion.
    """

    digest: np.ndarray
    is_right: np.ndarray
    blocks: Iterator[chunks.Block]
    done: dict[str, int]


def image_features(plan: Plan, encoder: Encoder | None, work: Path, rejected: Rejected) -> Images:
    """Encode the pictures, or read the given vectors through; unusable ones are rejected."""
    pairs = plan.pairs
    if encoder is None:
        array = plan.image_vectors
        digest, own = plan.digests, None
        if digest is None:
            digest = own = np.empty((len(array), DIGEST_BYTES), np.uint8)
        is_right = scan_vectors(array, "image vectors", own)
        reject_pairs(rejected, pairs, ~is_right[pairs.image], "not finite: its image vector")
        return Images(digest, is_right, vector_blocks(array), {})
    used = np.unique(pairs.image)
    captions = np.bincount(pairs.image, minlength=len(pairs.names))[used]
    known = len(rejected)

    def check(reasons: list[str]) -> None:
        lost = sum(n for n, reason in zip(captions, reasons, strict=False) if reason)
        if known + lost > rejected.most * (known + captions.sum()):
            reject(reasons)
            rejected.check(int(captions.sum() - lost))

    def reject(reasons: list[str]) -> None:
        found = {image: why for image, why in zip(used, reasons, strict=False) if why}
        reject_pairs(rejected, pairs, np.isin(pairs.image, list(found)), found)

    shards = chunks.encode_pictures(encoder, plan.pictures, used, work, check)
    reject(shards.column("reason").tolist())
    digest = np.zeros((len(pairs.names), DIGEST_BYTES), np.uint8)
    digest[used] = shards.column("digest")
    is_right = np.zeros(len(pairs.names), bool)
    is_right[shards.numbers] = True
    done = Counter(what for each in shards.column("done") if each for what in each.split(", "))
    return Images(digest, is_right, shards.blocks(), dict(sorted(done.items())))


def scan_vectors(
    array: Vectors, name: str, digests: UInt8[np.ndarray, "rows 16"] | None
) -> Bool[np.ndarray, " rows"]:
    """Read all rows once; return which of them are finite.

    Args:
      array: the rows.
      name: name of the array for the progress bar.
      digests: filled with the hash of each row's bytes; None if nobody needs them.
    """
    finite = np.empty(len(array), bool)
    with progress_bar(len(array), f"reading {name}", unit="rows") as bar:
        for rows, block in vector_blocks(array):
            finite[rows] = np.isfinite(block).reshape(len(block), -1).all(axis=1)
            if digests is not None:
                hashes = (hashlib.blake2b(row, digest_size=DIGEST_BYTES).digest() for row in block)
                digests[rows] = np.frombuffer(b"".join(hashes), np.uint8).reshape(len(block), -1)
            bar.update(len(rows))
    return finite


def vector_blocks(array: Vectors) -> Iterator[chunks.Block]:
    """Read an array in blocks of about 32 MB, each with the numbers of its rows."""
    size = max(1, _BLOCK_BYTES // (array.nbytes // len(array)))
    for start in range(0, len(array), size):
        rows = np.arange(start, min(start + size, len(array)))
        yield rows, np.ascontiguousarray(still_whole(array)[rows])


def write_caption_vectors(
    out: Path,
    work: Path,
    plan: Plan,
    encoder: Encoder | None,
    pairs: TablePairs,
    layout: writing.Layout,
) -> dict[str, Any]:
    """Write the captions' vectors, if there are any.

    Returns:
      The kind of the captions: words, vectors, tokens (vectors of words) or none; and the number of
      captions that were cut because they are too long for the encoder.
    """
    if plan.is_gallery:
        return {"kind": "none"}
    order = np.concatenate(layout.pairs)
    split, row = np.full(pairs.caption_count, NONE), np.zeros(pairs.caption_count, np.int64)
    for number, own in enumerate(layout.pairs):
        split[pairs.caption[own]] = number
        row[pairs.caption[own]] = np.arange(len(own))
    files = [split_file(out, name, "vectors") for name in SPLITS]
    if plan.caption_vectors is not None:
        writing.write_rows(files, split, row, vector_blocks(plan.caption_vectors))
        return {"kind": "vectors"}
    encoded = None
    if encoder is not None:
        encoded = chunks.encode_captions(encoder, pairs.text, order, work)
    if encoded is None:
        return {"kind": "words"}
    lengths = encoded.column("lengths")
    numbered = encoded._replace(numbers=pairs.caption[order])
    width = int(lengths.max()) if len(lengths) else None
    # Without padding that no caption needs.
    blocks = ((numbers, features[:, :width]) for numbers, features in numbered.blocks())
    writing.write_rows(files, split, row, blocks, width)
    ends = np.cumsum([len(own) for own in layout.pairs])
    for name, own in zip(SPLITS, np.split(lengths, ends[:-1]), strict=True):
        if len(own):
            replace_array(out / f"{name}_lengths.npy", own.astype(np.int32))
    cut = int(encoded.column("cut").sum())
    return {"kind": "tokens" if len(lengths) else "vectors", "cut": cut}
