"""Padded batches with few static shapes, and the iterators for scoring and evaluation.

grain's threads read a few batches ahead. The order of a stream is a pure function of (seed, epoch,
stream), and any step can be built without reading the steps before it, so one integer is a run's
position in its data. With several hosts, each host computes the rows of the global batch and reads
only the features of its own share. `streams` has the iterator for training.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from l2rm_jax.console import unconfigured_root
from l2rm_jax.data import pairs
from l2rm_jax.data.features import LazyRows, Pixels, RegionFeatures
from l2rm_jax.data.train_pairs import TrainPairs, token_counts
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.hosts import Share, usable_cores

BUCKETS = (8, 12, 16, 20, 24, 32, 48, 64)  # numbers of words to which captions are padded
MAX_WORDS = 64
WHOLE_BATCH = Share()  # of a single host

T = TypeVar("T")


def scoring_batches(
    dataset: TrainPairs,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    max_words: int = MAX_WORDS,
    share: Share = WHOLE_BATCH,
    vectors: LazyRows | None = None,
    read_images: bool = True,
) -> Iterator[tuple[Batch, Int[np.ndarray, " valid"]]]:
    """Iterate over every pair exactly once, shuffled by (seed, epoch).

    The last batch is filled up with the first pairs of the order. These repeats do not count.

    Args:
      dataset: the pairs.
      batch_size: pairs per global batch.
      seed: seed of the run.
      epoch: number of the epoch.
      max_words: as in `TrainStream`.
      share: the host's share of each global batch.
      vectors, read_images: as in `BatchReader`.

    Yields:
      The share of a global batch, and the rows of its valid pairs, which come first in the global
      batch.

    Raises:
      DataError: while iterating, if a feature is not finite.
    """
    reader = BatchReader(dataset, BUCKETS, max_words, share, vectors, read_images)
    steps = -(-len(dataset) // batch_size)
    order = np.random.default_rng(stream_seed(seed, epoch, "scoring")).permutation(len(dataset))
    order = np.resize(order, (steps, batch_size))  # repeats the first pairs at the end

    def build(step: int) -> tuple[Batch, np.ndarray]:
        batch = reader.batch(order[step], order[step], reader.bucket(order[step]))
        return batch, order[step][: len(dataset) - step * batch_size]

    return read_ahead(build, range(steps))


def image_batches(
    images: RegionFeatures | Pixels,
    batch_size: int,
    rows: Int[np.ndarray, " n"] | None = None,
    share: Share = WHOLE_BATCH,
) -> Iterator[tuple[Batch, int]]:
    """Iterate over the images of the given rows, in that order; over all images without `rows`.

    Args:
      images: the images.
      batch_size: images per global batch.
      rows: [n] rows of images.
      share: the host's share of each global batch.

    Yields:
      The share of a global batch, and the number of valid images, which come first in the global
      batch: the last one is filled up with images of one region of zeros.

    Raises:
      DataError: while iterating, if a feature is not finite.
    """
    order = np.arange(len(images)) if rows is None else rows

    def build(step: int) -> tuple[Batch, int]:
        valid = order[step * batch_size : (step + 1) * batch_size]
        part = share.take(np.pad(valid, (0, batch_size - len(valid)), constant_values=-1))
        own = part[part >= 0]
        features = images.rows(own)
        padded = np.zeros((len(part), *features.shape[1:]), features.dtype)
        regions = np.ones(len(part), np.int32)
        padded[: len(own)], regions[: len(own)] = features, images.region_counts(own)
        return Batch(padded, regions), len(valid)

    return read_ahead(build, range(-(-len(order) // batch_size)))


def caption_batches(
    captions: pairs.Tokens, batch_size: int
) -> Iterator[tuple[Batch, Int[np.ndarray, " B"], int]]:
    """Iterate over all captions without clipping any, sorted by length to need little padding.

    A batch is padded to the smallest bucket that holds it; beyond the last bucket, to a multiple of
    32 words.

    Args:
      captions: word indices or word vectors, as `TrainPairs.tokens` holds them.
      batch_size: captions at once.

    Yields:
      The captions of a batch, their rows, and the number of valid captions: the last batch is
      filled up with repeats of its last caption.
    """
    reader = CaptionReader(captions, BUCKETS, max_words=None)
    by_length = np.argsort(reader.full_lengths, kind="stable")
    for start in range(0, len(by_length), batch_size):
        part = by_length[start : start + batch_size]
        full = np.pad(part, (0, batch_size - len(part)), mode="edge")
        yield reader.captions(full, reader.bucket(part)), full, len(part)


def smallest_bucket(length: int, buckets: Sequence[int] = BUCKETS) -> int:
    """Smallest bucket that holds `length` words; beyond the last bucket, a multiple of 32."""
    return next((bucket for bucket in buckets if bucket >= length), -(-length // 32) * 32)


class CaptionReader:
    """Reads captions into padded batches.

    Args:
      captions: word indices or word vectors.
      buckets: numbers of words to which captions are padded, ascending.
      max_words: number of words after which a caption is clipped; None clips none.
    """

    def __init__(self, captions: pairs.Tokens, buckets: Sequence[int], max_words: int | None):
        self._captions, self._buckets = captions, buckets
        self.full_lengths = token_counts(captions)  # before clipping
        self._lengths = self.full_lengths
        if max_words is not None:
            self._lengths = np.minimum(self.full_lengths, max_words)

    def bucket(self, rows: np.ndarray) -> int:
        """Number of words to pad captions to: their bucket, limited to the stored vectors."""
        bucket = smallest_bucket(int(self._lengths[rows].max()), self._buckets)
        if isinstance(self._captions, RegionFeatures):
            return min(bucket, self._captions.shape[1])
        return bucket

    def captions(self, rows: np.ndarray, words: int) -> Batch:
        """Read captions, padded to `words` words; the batch has no images."""
        lengths = self._lengths[rows]
        if isinstance(self._captions, RegionFeatures):
            vectors = self._captions.rows(rows)[:, :words]
            tokens = vectors * (np.arange(words) < lengths[:, None])[..., None]
            return Batch(tokens=tokens, lengths=lengths)
        tokens = np.zeros((len(rows), words), np.int32)
        for line, row, length in zip(tokens, rows, lengths, strict=True):
            line[:length] = self._captions[row][:length]
        return Batch(tokens=tokens, lengths=lengths)


class BatchReader(CaptionReader):
    """Reads rows of a data set into padded batches.

    Args:
      dataset: the pairs.
      buckets: as in `CaptionReader`.
      max_words: as in `CaptionReader`.
      share: the host's share of each global batch.
      vectors: [pairs, ...] the head's vectors of the image of each pair, which replace the image in
        a batch; None reads the images.
      read_images: whether batches have their images, if they have no vectors.
    """

    def __init__(
        self,
        dataset: TrainPairs,
        buckets: Sequence[int],
        max_words: int | None,
        share: Share = WHOLE_BATCH,
        vectors: LazyRows | None = None,
        read_images: bool = True,
    ):
        super().__init__(dataset.tokens, buckets, max_words)
        self.dataset, self._share, self._vectors = dataset, share, vectors
        self._read_images = read_images

    def batch(
        self,
        image_rows: np.ndarray,
        caption_rows: np.ndarray,
        words: int,
        older_images: Sequence[int] = (),
    ) -> Batch:
        """Read the host's share of a batch.

        Args:
          image_rows: [B] pairs that give the images.
          caption_rows: [B] pairs that give the captions; usually the same.
          words: number of words to which captions are padded.
          older_images: rows of images to append after the images of the pairs.
        """
        older = np.asarray(older_images, np.int32)
        stored = np.concatenate([self.dataset.stored_image[image_rows].astype(np.int32), older])
        stored, image_rows, caption_rows = map(self._share.take, (stored, image_rows, caption_rows))
        batch = self.captions(caption_rows, words)._replace(
            pair_index=np.where(image_rows == caption_rows, caption_rows, -1).astype(np.int32),
            image_index=stored,
        )
        if self._vectors is not None:
            return batch._replace(vectors=self._vectors[image_rows])
        images = self.dataset.images
        batch = batch._replace(regions=images.region_counts(stored))
        return batch._replace(images=images.rows(stored)) if self._read_images else batch


def read_ahead(build: Callable[[int], T], steps: range) -> Iterator[T]:
    """Iterate over `build(step)`, which threads call a few steps ahead; its errors are raised.

    There is one thread per core, at least 2 and at most 16: a single one reads and checks too few
    pairs per second for an accelerator. Memory holds the batches of one step per thread.
    """
    with unconfigured_root():  # it imports orbax, which takes a second: not where nothing is read
        import grain

    threads = min(max(usable_cores(), 2), 16)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, 4))
    return iter(grain.MapDataset.source(steps).map(build).to_iter_dataset(options))


def stream_seed(seed: int, epoch: int, stream: str) -> list[int]:
    """Seed of a stream's random generator; unlike `hash`, the same in every process."""
    return [seed, epoch, zlib.crc32(stream.encode())]
