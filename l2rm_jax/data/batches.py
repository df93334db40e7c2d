"""Batches with few static shapes, read ahead by grain's threads.

The order of every stream is a pure function of (seed, epoch, stream) and a step can be reached
without reading what comes before it, so a run's position in its data is one integer. Every host
knows the rows of the global batch and reads the features of its share of them.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import grain
import numpy as np
from jaxtyping import Float32, Int, Int32

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.devices.hosts import Share, usable_cores
from l2rm_jax.errors import ConfigError

BUCKETS = (8, 12, 16, 20, 24, 32, 48, 64)
MAX_WORDS = 64
WHOLE = Share()

T = TypeVar("T")
Tokens = Int32[np.ndarray, "B L"] | Float32[np.ndarray, "B L Dt"]


class Batch(NamedTuple):
    """Pairs, padded to a common number of words.

    Q = B, but where a queue adds older images after those of the B pairs (see `TrainStream`).
    """

    images: Float32[np.ndarray, "Q R Dv"]  # features of the stored images
    regions: Int32[np.ndarray, " Q"]  # how many of an image's R rows are regions; zeros follow
    tokens: Tokens  # word indices, or vectors that stand for words; zero after a caption's end
    lengths: Int32[np.ndarray, " B"]  # words of each caption
    pair_index: Int32[np.ndarray, " B"]  # row of the pair in its data set; -1 where there is none
    image_index: Int32[np.ndarray, " Q"]  # rows of the stored images


def scoring_batches(
    dataset: PairDataset,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    buckets: Sequence[int] = BUCKETS,
    max_words: int = MAX_WORDS,
    share: Share = WHOLE,
) -> Iterator[tuple[Batch, Int[np.ndarray, " valid"]]]:
    """Every pair exactly once, shuffled by (seed, epoch).

    Yields:
      The share of a global batch, and the rows of the pairs that count in that batch, which come
      first: the last one is completed with the first pairs of all.
    """
    reader = BatchReader(dataset, buckets, max_words, share)
    steps = -(-len(dataset) // batch_size)
    order = np.random.default_rng(stream_seed(seed, epoch, "scoring")).permutation(len(dataset))
    order = np.resize(order, (steps, batch_size))  # repeats the first pairs at the end

    def build(step: int) -> tuple[Batch, np.ndarray]:
        batch = reader.batch(order[step], order[step], reader.bucket(order[step]))
        return batch, order[step][: len(dataset) - step * batch_size]

    return read_ahead(build, range(steps))


def image_batches(
    dataset: PairDataset, batch_size: int, rows: Int[np.ndarray, " n"] | None = None
) -> Iterator[tuple[Float32[np.ndarray, "B R Dv"], Int32[np.ndarray, " B"], int]]:
    """The images of these rows, in their order; all images without `rows`.

    Yields:
      Features, regions of each image, and how many rows count: the last batch is completed with
      images of one region, all zeros.
    """
    images = dataset.images
    order = np.arange(len(images)) if rows is None else rows

    def build(step: int) -> tuple[np.ndarray, np.ndarray, int]:
        own = order[step * batch_size : (step + 1) * batch_size]
        batch = np.zeros((batch_size, *images.shape[1:]), np.float32)
        regions = np.ones(batch_size, np.int32)
        batch[: len(own)], regions[: len(own)] = images.rows(own), images.region_counts(own)
        return batch, regions, len(own)

    return read_ahead(build, range(-(-len(order) // batch_size)))


def caption_batches(
    dataset: PairDataset, batch_size: int, buckets: Sequence[int] = BUCKETS
) -> Iterator[tuple[Tokens, Int32[np.ndarray, " B"], Int[np.ndarray, " B"], int]]:
    """All captions, unclipped, in the order of their length so that little is padding.

    Beyond the last bucket, lengths are rounded up to multiples of 32.

    Yields:
      Tokens, lengths, rows of the captions, and how many of these count: the last batch is
      completed by repeating its last caption.
    """
    reader = BatchReader(dataset, buckets, max_words=None)
    by_length = np.argsort(reader.full_lengths, kind="stable")
    for start in range(0, len(by_length), batch_size):
        part = by_length[start : start + batch_size]
        full = np.pad(part, (0, batch_size - len(part)), mode="edge")
        yield (*reader.captions(full, reader.bucket(part)), full, len(part))


def bucket_of(length: int, buckets: Sequence[int] = BUCKETS) -> int:
    """The smallest bucket that holds `length` words, or beyond the last a multiple of 32."""
    return next((bucket for bucket in buckets if bucket >= length), -(-length // 32) * 32)


class BatchReader:
    """Gathers rows of a data set into padded batches."""

    def __init__(
        self,
        dataset: PairDataset,
        buckets: Sequence[int],
        max_words: int | None,
        share: Share = WHOLE,
    ):
        if list(buckets) != sorted(set(buckets)) or not buckets or buckets[0] < 1:
            raise ConfigError(f"buckets are {tuple(buckets)}, expected ascending positive numbers")
        if max_words is not None and max_words < 1:
            raise ConfigError(f"max_words is {max_words}, expected at least 1")
        self.dataset, self._share = dataset, share
        self.full_lengths = dataset.lengths
        self._vectors = dataset.tokens if isinstance(dataset.tokens, RegionFeatures) else None
        self._lengths = self.full_lengths
        if max_words is not None:
            self._lengths = np.minimum(self.full_lengths, max_words)
        self._buckets = buckets

    def width(self, length: int) -> int:
        """The bucket of captions of so many words; never more than there is room for."""
        bucket = bucket_of(int(length), self._buckets)
        return bucket if self._vectors is None else min(bucket, self._vectors.shape[1])

    def bucket(self, rows: np.ndarray) -> int:
        return self.width(self._lengths[rows].max())

    def captions(self, rows: np.ndarray, words: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [B, words, ...] and lengths [B]."""
        lengths = self._lengths[rows]
        if self._vectors is not None:
            vectors = self._vectors.rows(rows)[:, :words]
            return vectors * (np.arange(words) < lengths[:, None])[..., None], lengths
        tokens = np.zeros((len(rows), words), np.int32)
        for line, row, length in zip(tokens, rows, lengths, strict=True):
            line[:length] = self.dataset.tokens[row][:length]
        return tokens, lengths

    def batch(
        self,
        image_rows: np.ndarray,
        caption_rows: np.ndarray,
        words: int,
        older_images: Sequence[int] = (),
    ) -> Batch:
        """The share of the images and the captions of these pairs; `older_images` follow the
        images."""
        older = np.asarray(older_images, np.int32)
        stored = np.concatenate([self.dataset.stored_image[image_rows].astype(np.int32), older])
        stored, image_rows, caption_rows = map(self._share.of, (stored, image_rows, caption_rows))
        tokens, lengths = self.captions(caption_rows, words)
        images = self.dataset.images
        return Batch(
            images=images.rows(stored),
            regions=images.region_counts(stored),
            tokens=tokens,
            lengths=lengths,
            pair_index=np.where(image_rows == caption_rows, caption_rows, -1).astype(np.int32),
            image_index=stored,
        )


def read_ahead(build: Callable[[int], T], steps: range) -> Iterator[T]:
    """`build(step)` for each step, a few steps ahead in threads; its errors come through."""
    source = grain.MapDataset.source(steps).map(build)
    return iter(source.to_iter_dataset(read_options()))


def read_options() -> grain.ReadOptions:
    """A thread for each core, 2 to 16: one gathers and checks too few pairs for an accelerator.

    A step's batches are held in memory for each.
    """
    threads = min(max(usable_cores(), 2), 16)
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, 4))


def stream_seed(seed: int, epoch: int, stream: str) -> list[int]:
    """What a stream's generator is seeded with; the same in every process, unlike hash()."""
    return [seed, epoch, zlib.crc32(stream.encode())]
