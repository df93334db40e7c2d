"""Batches with few static shapes, read ahead by grain's threads.

The order of every stream is a pure function of (seed, epoch, stream) and a step can be reached
without reading what comes before it, so a run's position in its data is one integer. Every host
knows the rows of the global batch and reads the features of its share of them.
"""

import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import grain
import numpy as np
from jaxtyping import Float32, Int, Int32

from l2rm_jax.data.dataset import PairDataset
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.hosts import Share, usable_cores

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


class TrainStream:
    """The batches of one epoch, from one or several streams of pairs.

    The epoch is one pass over the first stream; what does not fill a batch at its end is dropped.
    The other streams restart, reshuffled, when exhausted. A stream smaller than a batch is
    completed with its own pairs, reshuffled.

    Args:
      dataset: the training pairs.
      streams: by name, the first one sets the length. [n] rows of pairs make a `Batch` a step.
        [n, k, 2] rows make a tuple of k, row by row: the image of one pair with the caption of
        another, whose `pair_index` is -1 unless they are the same.
      batch_size: pairs per batch and stream.
      seed: of the run's order.
      epoch: a number; every epoch has an order of its own.
      buckets: ascending numbers of words; a step has the smallest that holds its longest caption.
      max_words: words kept of a caption.
      queue_length: images of the stream "mismatched" that a step is to see, a multiple of
        `batch_size`. Beyond `batch_size`, the images of the batches before it follow those of
        the batch itself, newest batch first; at the start of an epoch, images drawn at random
        stand in for the batches that were not yet.
      share: the rows of each batch that are read; all others are left out of it.

    Raises:
      DataError: the data are smaller than a batch, a stream is empty, a row is out of range.
      ConfigError: buckets that do not ascend, no words kept, a queue that is not a multiple of the
        batch.
    """

    def __init__(
        self,
        dataset: PairDataset,
        streams: Mapping[str, Int[np.ndarray, " n"]],
        *,
        batch_size: int,
        seed: int,
        epoch: int,
        buckets: Sequence[int] = BUCKETS,
        max_words: int = MAX_WORDS,
        queue_length: int = 0,
        share: Share = WHOLE,
    ):
        _check_streams(dataset, streams, batch_size)
        check_queue(dataset, queue_length, batch_size)
        self._reader = _Reader(dataset, buckets, max_words, share)
        self._orders = {
            name: _Order(np.asarray(rows), batch_size, _words(seed, epoch, name))
            for name, rows in streams.items()
        }
        first = np.asarray(next(iter(streams.values())))
        self._steps = max(1, len(first) // batch_size)
        behind = max(0, queue_length - batch_size) if "mismatched" in streams else 0
        self._batches_behind = behind // batch_size
        rng = np.random.default_rng(_words(seed, epoch, "queue"))
        images = len(dataset.images)
        self._before = rng.choice(images, behind, replace=behind > images).reshape(-1, batch_size)

    def __len__(self) -> int:
        return self._steps

    def iterate(self, start_step: int = 0) -> Iterator[dict[str, Batch]]:
        """The steps from `start_step` on, exactly as a pass from 0 has them.

        Raises:
          DataError: while iterating, when a feature is not finite.
        """
        return _read_ahead(self._step, range(start_step, len(self)))

    def pairs(self, step: int) -> dict[str, Int[np.ndarray, "..."]]:
        """Rows of the pairs of a step by stream, in the form in which the stream was given."""
        return {name: order[step] for name, order in self._orders.items()}

    def _step(self, step: int) -> dict[str, Batch]:
        streams = self.pairs(step)
        captions = [rows if rows.ndim == 1 else rows[..., 1].ravel() for rows in streams.values()]
        words = self._reader.bucket(np.concatenate(captions))
        older = {"mismatched": self._queue(step)} if self._batches_behind else {}

        def build(name: str, rows: np.ndarray) -> Batch | tuple[Batch, ...]:
            if rows.ndim == 1:
                return self._reader.batch(rows, rows, words, older.get(name, ()))
            return tuple(self._reader.batch(*pair.T, words) for pair in rows.swapaxes(0, 1))

        return {name: build(name, rows) for name, rows in streams.items()}

    def _queue(self, step: int) -> np.ndarray:
        """Rows of the images of the batches before `step`, newest batch first."""
        order, stored = self._orders["mismatched"], self._reader.dataset.stored_image
        newest = [
            stored[order[step - back]]
            for back in range(1, self._batches_behind + 1)
            if back <= step
        ]
        return np.concatenate([*newest, *self._before])[: self._before.size]


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
    reader = _Reader(dataset, buckets, max_words, share)
    steps = -(-len(dataset) // batch_size)
    order = np.random.default_rng(_words(seed, epoch, "scoring")).permutation(len(dataset))
    order = np.resize(order, (steps, batch_size))  # repeats the first pairs at the end

    def build(step: int) -> tuple[Batch, np.ndarray]:
        batch = reader.batch(order[step], order[step], reader.bucket(order[step]))
        return batch, order[step][: len(dataset) - step * batch_size]

    return _read_ahead(build, range(steps))


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

    return _read_ahead(build, range(-(-len(order) // batch_size)))


def caption_batches(
    dataset: PairDataset, batch_size: int, buckets: Sequence[int] = BUCKETS
) -> Iterator[tuple[Tokens, Int32[np.ndarray, " B"], Int[np.ndarray, " B"], int]]:
    """All captions, unclipped, in the order of their length so that little is padding.

    Beyond the last bucket, lengths are rounded up to multiples of 32.

    Yields:
      Tokens, lengths, rows of the captions, and how many of these count: the last batch is
      completed by repeating its last caption.
    """
    reader = _Reader(dataset, buckets, max_words=None)
    by_length = np.argsort(reader.full_lengths, kind="stable")
    for start in range(0, len(by_length), batch_size):
        part = by_length[start : start + batch_size]
        full = np.pad(part, (0, batch_size - len(part)), mode="edge")
        yield (*reader.captions(full, reader.bucket(part)), full, len(part))


def bucket_of(length: int, buckets: Sequence[int] = BUCKETS) -> int:
    """The smallest bucket that holds `length` words, or beyond the last a multiple of 32."""
    return next((bucket for bucket in buckets if bucket >= length), -(-length // 32) * 32)


class _Reader:
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


def _read_ahead(build: Callable[[int], T], steps: range) -> Iterator[T]:
    """`build(step)` for each step, a few steps ahead in threads; its errors come through."""
    source = grain.MapDataset.source(steps).map(build)
    return iter(source.to_iter_dataset(read_options()))


def read_options() -> grain.ReadOptions:
    """A thread for each core, 2 to 16: one gathers and checks too few pairs for an accelerator.

    A step's batches are held in memory for each.
    """
    threads = min(max(usable_cores(), 2), 16)
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, 4))


class _Order:
    """Endless batches of rows, reshuffled at each pass; no batch spans two passes if it can.

    NumPy's shuffle, not grain's: grain's looks rows up one by one, 5 ms for a batch of 64.
    """

    def __init__(self, rows: np.ndarray, batch_size: int, words: list[int]):
        self._rows, self._batch_size, self._words = rows, batch_size, words
        self._used = len(rows) - len(rows) % batch_size or len(rows)  # of each pass
        self._shuffled = functools.lru_cache(maxsize=2)(self._shuffle)

    def _shuffle(self, turn: int) -> np.ndarray:
        return np.random.default_rng([*self._words, turn]).permutation(self._rows)[: self._used]

    def __getitem__(self, step: int) -> np.ndarray:
        start = step * self._batch_size
        first, last = start // self._used, (start + self._batch_size - 1) // self._used
        turns = [self._shuffled(turn) for turn in range(first, last + 1)]
        rows = turns[0] if first == last else np.concatenate(turns)
        return rows[start - first * self._used :][: self._batch_size]


def _words(seed: int, epoch: int, stream: str) -> list[int]:
    """What a stream's generator is seeded with; the same in every process, unlike hash()."""
    return [seed, epoch, zlib.crc32(stream.encode())]


def check_batch_size(dataset: PairDataset, batch_size: int) -> None:
    """Raises `DataError` when the data do not fill a batch."""
    if len(dataset) < batch_size:
        raise DataError(
            f"{dataset.split}: found {len(dataset)} pairs, expected at least one batch of "
            f"{batch_size}; lower train.batch_size"
        )


def _check_streams(
    dataset: PairDataset, streams: Mapping[str, np.ndarray], batch_size: int
) -> None:
    check_batch_size(dataset, batch_size)
    if not streams:
        raise DataError(f"{dataset.split}: no stream of pairs to train on, expected at least one")
    for name, rows in streams.items():
        if not len(rows):
            raise DataError(f"{dataset.split}: stream {name!r} is empty, expected at least a pair")
        low, high = np.min(rows), np.max(rows)
        if low < 0 or high >= len(dataset):
            raise DataError(
                f"{dataset.split}: stream {name!r} has pairs {low} to {high}, expected rows "
                f"0 to {len(dataset) - 1}"
            )


def check_queue(dataset: PairDataset, queue_length: int, batch_size: int) -> None:
    """Raises `ConfigError` for a queue that batches do not make up, or far beyond the data."""
    most = (-(-len(dataset) // batch_size) + 1) * batch_size
    if not 0 <= queue_length <= most or queue_length % batch_size:
        raise ConfigError(
            f"queue_length is {queue_length}, expected 0 or a multiple of the batch size "
            f"{batch_size}, at most {most} for {len(dataset)} pairs"
        )
