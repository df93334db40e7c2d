"""Compute features in chunks, each a file: an import that is killed loses one at most."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from l2rm_jax.console import progress_bar
from l2rm_jax.data.batches import read_ahead
from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.pictures import UnreadableError, open_picture
from l2rm_jax.errors import DataError
from l2rm_jax.importing.encoding_cache import EncodingCache, Found
from l2rm_jax.importing.pictures import DIGEST_BYTES, Pictures, digest_of
from l2rm_jax.pretrained.feature_encoder import Encoder

_log = logging.getLogger(__name__)

SHARD = 256  # pictures
CAPTION_SHARD = 2048
_BATCH = 32  # pictures that an encoder gets at once
_CAPTION_BATCH = 256

Block = tuple[Int[np.ndarray, " n"], Float[np.ndarray, "n ..."]]  # numbers of rows, their features


class Shards(NamedTuple):
    """Features on disk, in the order in which they were computed.

    Attributes:
      files: the shards.
      numbers: [rows] number of the image or caption of each row.
    """

    files: tuple[Path, ...]
    numbers: Int[np.ndarray, " rows"]

    def blocks(self) -> Iterator[Block]:
        """The features of each shard, with the numbers of its rows."""
        start = 0
        for file in self.files:
            features = read_member(file, "features")
            if len(features):
                yield self.numbers[start : start + len(features)], features
            start += len(features)

    def column(self, name: str) -> np.ndarray:
        """Join a further array of all shards."""
        return np.concatenate([read_member(file, name) for file in self.files])


def encode_pictures(
    encoder: Encoder,
    pictures: Pictures,
    images: Int[np.ndarray, " images"],
    directory: Path,
    on_shard: Callable[[Sequence[str]], None],
) -> Shards:
    """Encode the pictures of some images, except those that are encoded already.

    Features that earlier imports have kept are not computed again (`EncodingCache`).

    Args:
      encoder: gives the features.
      pictures: gives the pictures.
      images: numbers of the images, the same in every call for a directory.
      directory: where the shards lie.
      on_shard: called after each shard with the reasons of all images so far; may raise.

    Returns:
      Features of the readable pictures. Further columns are `digest`, `[images, 16]` hashes of the
      bytes, zeros of an unreadable picture; `reason`, `[images]` why a picture is unreadable, ""
      of the others; and `done`, the conversions of each readable one.

    Raises:
      DataError: the encoder's features have another form than it said or gave before.
    """

    cache, known = EncodingCache(encoder), 0

    def load(at: int) -> tuple[bytes, object]:
        try:
            image = int(images[at])
            content = pictures.read(image)
            digest = digest_of(content)
            if (found := cache.get(digest)) is not None:
                return digest, found
            with warnings.catch_warnings(record=True) as caught:  # of Pillow, which names no file
                warnings.simplefilter("always")
                opened = open_picture(content)
            for each in caught:
                _log.warning("%s: %s", pictures.names[image].as_py(), each.message)
            return digest, opened
        except UnreadableError as error:
            return bytes(DIGEST_BYTES), str(error)

    files, reasons = [], []
    with progress_bar(len(images), "encoding pictures", unit="pictures") as bar:
        for start in range(0, len(images), SHARD):
            file = directory / f"images-{start // SHARD:06}.npz"
            places = range(start, min(start + SHARD, len(images)))
            if not file.exists():
                loaded = read_ahead(load, places)
                arrays, count = _encode_shard(encoder, cache, loaded, bar.update)
                known += count
                replace_arrays(file, arrays)
            else:
                bar.update(len(places))
            files.append(file)
            reasons += read_member(file, "reason").tolist()
            on_shard(reasons)
    if known:
        _log.info("%s of %s encodings from the cache", f"{known:,}", f"{len(images):,}")
    return Shards(tuple(files), images[np.array(reasons) == ""])


def _encode_shard(
    encoder: Encoder,
    cache: EncodingCache,
    loaded: Iterator[tuple[bytes, Any]],
    update: Callable[[int], None],
) -> tuple[dict[str, np.ndarray], int]:
    """Encode the pictures of a shard.

    Args:
      encoder: gives the features of pictures that are not in the cache.
      cache: keeps their features.
      loaded: the hash of each picture, with the picture and its conversions, or the reason why it
        is unreadable, or its features of the cache.
      update: called with the number of pictures that are done.

    Returns:
      The arrays of the shard, and the number of pictures that were in the cache.
    """
    digests, reasons, done, batch = [], [], [], []
    features: list[Any] = []  # of the readable pictures
    new: list[int] = []  # places of those that are encoded here

    def encode() -> None:
        if batch:
            rows = _checked(encoder, encoder.encode_images(batch), len(batch))
            for place, row in zip(new[len(new) - len(batch) :], rows, strict=True):
                features[place] = row
            update(len(batch))
            batch.clear()

    for digest, picture in loaded:
        digests.append(np.frombuffer(digest, np.uint8))
        reasons.append(picture if isinstance(picture, str) else "")
        if not isinstance(picture, str | Found):
            new.append(len(features))
            features.append(None)
            done.append(", ".join(picture[1]))
            batch.append(picture[0])
            if len(batch) == _BATCH:
                encode()
            continue
        update(1)
        if isinstance(picture, Found):
            features.append(picture.features)
            done.append(picture.done)
    encode()
    arrays = {
        "features": np.stack(features) if features else np.zeros((0, 0), np.float16),
        "digest": np.stack(digests),
        "reason": np.array(reasons),
        "done": np.array(done, str),
    }
    readable = arrays["digest"][arrays["reason"] == ""]
    cache.keep(readable[new], arrays["features"][new], arrays["done"][new])
    return arrays, len(features) - len(new)


def encode_captions(
    encoder: Encoder, texts: pa.Array, order: Int[np.ndarray, " captions"], directory: Path
) -> Shards | None:
    """Encode captions that are not encoded yet; None if the encoder leaves them words.

    Args:
      encoder: gives the vectors.
      texts: all captions.
      order: captions to encode, in this order; the same in every call for a directory.
      directory: where the shards lie.

    Raises:
      DataError: as `encode_pictures`.
    """
    files = []
    with progress_bar(len(order), "encoding captions", unit="captions") as bar:
        for start in range(0, len(order), CAPTION_SHARD):
            file = directory / f"captions-{start // CAPTION_SHARD:06}.npz"
            numbers = order[start : start + CAPTION_SHARD]
            if file.exists():
                bar.update(len(numbers))
            else:
                arrays = _encode_caption_shard(
                    encoder, texts.take(pa.array(numbers)).to_pylist(), bar.update
                )
                if arrays is None:
                    return None
                replace_arrays(file, arrays)
            files.append(file)
    return Shards(tuple(files), order)


def _encode_caption_shard(
    encoder: Encoder, texts: Sequence[str], update: Callable[[int], None]
) -> dict[str, np.ndarray] | None:
    features, lengths, cut_before = [], [], encoder.cut_captions
    for start in range(0, len(texts), _CAPTION_BATCH):
        batch = texts[start : start + _CAPTION_BATCH]
        encoded = encoder.encode_captions(batch)
        if encoded is None:
            return None
        features.append(_checked(encoder, encoded[0], len(batch)))
        lengths.append(np.zeros(0, np.int32) if encoded[1] is None else encoded[1])
        update(len(batch))
    if features[0].ndim == 3:  # batches may be padded to different numbers of words
        words = max(each.shape[1] for each in features)
        features = [np.pad(x, ((0, 0), (0, words - x.shape[1]), (0, 0))) for x in features]
    return {
        "features": np.concatenate(features),
        "lengths": np.concatenate(lengths),
        "cut": np.array([encoder.cut_captions - cut_before]),
    }


def _checked(encoder: Encoder, features: np.ndarray, rows: int) -> np.ndarray:
    """Features of a batch; they must be finite, one row for each input."""
    is_pixels = features.dtype == np.uint8 and features.ndim == 4
    if len(features) != rows or not (is_pixels or features.ndim in (2, 3)):
        raise DataError(
            f"--encoder={encoder.name}: found features {list(features.shape)} for {rows} inputs, "
            f"expected [{rows}, dimensions] or [{rows}, vectors, dimensions]"
        )
    if not np.isfinite(features).all():
        raise DataError(
            f"--encoder={encoder.name}: found features that are not finite in {features.dtype}"
        )
    return features


def read_member(file: Path, name: str) -> np.ndarray:
    """Read one array of a shard.

    Raises:
      DataError: the file is not a shard.
    """
    with open_arrays(file, "a shard of features", "remove it, and repeat the import") as arrays:
        return arrays[name]
