"""The batches of a training epoch, from one or several streams of pairs in a seeded order."""

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from l2rm_jax.data.batches import (
    BUCKETS,
    MAX_WORDS,
    WHOLE_BATCH,
    BatchReader,
    read_ahead,
    stream_seed,
)
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.hosts import Share
from l2rm_jax.errors import ConfigError, DataError


class TrainStream:
    """The batches of one epoch, from one or several streams of pairs.

    The epoch is one pass over the first stream; a last, incomplete batch is dropped. The other
    streams restart, reshuffled, when they are exhausted. A stream smaller than a batch is filled up
    with its own pairs, reshuffled.

    Args:
      dataset: the training pairs.
      streams: rows of each stream, by name. The first stream sets the length of the epoch. Rows [n]
        are pairs; each step has one `Batch` of them. Rows [n, 2] give a batch that combines the
        image of one pair (`[..., 0]`) with the caption of another (`[..., 1]`), rows [n, k, 2] a
        tuple of k such batches per step; `pair_index` is -1 unless both are the same pair.
      batch_size: pairs per batch and stream.
      seed: seed of the order.
      epoch: number of the epoch; every epoch has a different order.
      buckets: ascending numbers of words. All captions of a step are padded to the smallest bucket
        that holds its longest caption.
      max_words: number of words after which a caption is clipped.
      queue_length: number of images of the stream "mismatched" (or, with several networks,
        "mismatched_a" and so on) in each step, a multiple of `batch_size`. The images of earlier
        batches follow the current batch, newest first. At the start of an epoch, randomly drawn
        images replace earlier batches. 0 means no queue.
      share: the host's share of each batch; only these rows are read and returned.
      once: streams that end when they are exhausted: later steps lack them. A stream that is
        smaller than a batch is filled up, and lasts for one step.
      length_groups: number of batches whose captions are sorted by length together, so that a batch
        holds captions of similar length; the order of the batches is shuffled. 1 disables sorting.
      read_images: whether batches have their images.

    Raises:
      DataError: there are fewer pairs than a batch, a stream is empty, or a row is out of range.
      ConfigError: a queue that is not a multiple of the batch, or too long for the data.
    """

    def __init__(
        self,
        dataset: TrainPairs,
        streams: Mapping[str, Int[np.ndarray, " n"]],
        *,
        batch_size: int,
        seed: int,
        epoch: int,
        buckets: Sequence[int] = BUCKETS,
        max_words: int = MAX_WORDS,
        queue_length: int = 0,
        share: Share = WHOLE_BATCH,
        once: Collection[str] = (),
        length_groups: int = 1,
        read_images: bool = True,
    ):
        _check_streams(dataset, streams, batch_size)
        check_queue_length(dataset, queue_length, batch_size)
        self._reader = BatchReader(dataset, buckets, max_words, share, read_images=read_images)
        lengths = dataset.lengths if length_groups > 1 else None
        self._shuffled = {
            name: _ShuffledBatches(
                np.asarray(rows), batch_size, stream_seed(seed, epoch, name), lengths, length_groups
            )
            for name, rows in streams.items()
        }
        first = np.asarray(next(iter(streams.values())))
        self._steps = max(1, len(first) // batch_size)
        self._once = frozenset(once)
        queued = max(0, queue_length - batch_size) if any(map(_is_queued, streams)) else 0
        self._queued_batches = queued // batch_size
        rng = np.random.default_rng(stream_seed(seed, epoch, "queue"))
        images = len(dataset.images)
        drawn = rng.choice(images, queued, replace=queued > images)
        self._first_queue = drawn.reshape(-1, batch_size)

    def __len__(self) -> int:
        return self._steps

    def iterate(self, start_step: int = 0) -> Iterator[dict[str, Batch]]:
        """Iterate over the steps from `start_step` on; each gives the `Batch` of every stream.

        The steps are the same as in an iteration from step 0.

        Raises:
          DataError: while iterating, if a feature is not finite.
        """
        return read_ahead(self._step, range(start_step, len(self)))

    def pairs(self, step: int) -> dict[str, Int[np.ndarray, "..."]]:
        """Rows of a step by stream, in the form of the argument `streams`."""
        return {
            name: batches[step]
            for name, batches in self._shuffled.items()
            if name not in self._once or step < batches.steps
        }

    def _step(self, step: int) -> dict[str, Batch | tuple[Batch, ...]]:
        streams = self.pairs(step)
        captions = [rows if rows.ndim == 1 else rows[..., 1].ravel() for rows in streams.values()]
        words = self._reader.bucket(np.concatenate(captions))
        queued = filter(_is_queued, streams) if self._queued_batches else ()
        older = {name: self._queue(name, step) for name in queued}

        def build(name: str, rows: np.ndarray) -> Batch | tuple[Batch, ...]:
            if rows.ndim == 1:
                return self._reader.batch(rows, rows, words, older.get(name, ()))
            if rows.ndim == 2:
                return self._reader.batch(*rows.T, words)
            return tuple(self._reader.batch(*pair.T, words) for pair in rows.swapaxes(0, 1))

        return {name: build(name, rows) for name, rows in streams.items()}

    def _queue(self, name: str, step: int) -> np.ndarray:
        """Rows of the images of a stream's batches before `step`, newest batch first."""
        batches, stored = self._shuffled[name], self._reader.dataset.stored_image
        earlier = [
            stored[batches[step - back]]
            for back in range(1, self._queued_batches + 1)
            if back <= step
        ]
        return np.concatenate([*earlier, *self._first_queue])[: self._first_queue.size]


def _is_queued(stream: str) -> bool:
    """Whether a stream keeps its earlier images for the next steps."""
    return stream.partition("_")[0] == "mismatched"


class _ShuffledBatches:
    """Endless sequence of batches of rows, which are reshuffled for every pass.

    A batch spans two passes only if there are fewer rows than `batch_size`: otherwise the remaining
    rows at the end of a pass are dropped. NumPy shuffles, because grain's shuffle looks up rows one
    by one, which takes 5 ms for a batch of 64.

    Args:
      rows: rows of the stream, in the form of `TrainStream`.
      batch_size: rows per batch.
      seed: seed of the order.
      lengths: number of tokens of each caption of the data set; None disables sorting.
      length_groups: as in `TrainStream`.
    """

    def __init__(
        self,
        rows: np.ndarray,
        batch_size: int,
        seed: list[int],
        lengths: np.ndarray | None = None,
        length_groups: int = 1,
    ):
        self._rows, self._batch_size, self._seed = rows, batch_size, seed
        self._lengths, self._group = None, length_groups * batch_size
        if lengths is not None:
            captions = rows if rows.ndim == 1 else rows[..., 1].reshape(len(rows), -1)
            self._lengths = lengths[captions].reshape(len(rows), -1).max(axis=1)
        self._pass_length = len(rows) - len(rows) % batch_size or len(rows)
        self.steps = max(1, self._pass_length // batch_size)  # per pass
        self._cached_pass = functools.lru_cache(maxsize=2)(self._shuffle)

    def _shuffle(self, number: int) -> np.ndarray:
        """Rows of a pass, by its number."""
        rng = np.random.default_rng([*self._seed, number])
        if self._lengths is None:
            return rng.permutation(self._rows)[: self._pass_length]
        order = rng.permutation(len(self._rows))[: self._pass_length]
        return self._rows[np.concatenate(list(self._sorted_groups(order, rng)))]

    def _sorted_groups(self, order: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """The rows of each group of batches, sorted by length, its batches in a random order."""
        for start in range(0, len(order), self._group):
            group = order[start : start + self._group]
            group = group[np.argsort(self._lengths[group], kind="stable")]
            batches = np.split(group, range(self._batch_size, len(group), self._batch_size))
            yield from (batches[at] for at in rng.permutation(len(batches)))

    def __getitem__(self, step: int) -> np.ndarray:
        start = step * self._batch_size
        first = start // self._pass_length
        last = (start + self._batch_size - 1) // self._pass_length
        passes = [self._cached_pass(number) for number in range(first, last + 1)]
        rows = passes[0] if first == last else np.concatenate(passes)
        return rows[start - first * self._pass_length :][: self._batch_size]


def check_batch_size(dataset: TrainPairs, batch_size: int) -> None:
    """Raise `DataError` if there are fewer pairs than a batch."""
    if len(dataset) < batch_size:
        raise DataError(
            f"{dataset.split}: found {len(dataset)} pairs, expected at least one batch of "
            f"{batch_size}",
            hint=f"--config.train.batch_size={len(dataset)}" if len(dataset) > 1 else None,
        )


def check_queue_length(dataset: TrainPairs, queue_length: int, batch_size: int) -> None:
    """Raise `ConfigError` if a queue is not a multiple of the batch, or too long for the data."""
    most = (-(-len(dataset) // batch_size) + 1) * batch_size
    if not 0 <= queue_length <= most or queue_length % batch_size:
        raise ConfigError(
            f"queue_length: found {queue_length}, expected 0 or a multiple of the batch size "
            f"{batch_size}, at most {most} for {len(dataset)} pairs"
        )


def _check_streams(dataset: TrainPairs, streams: Mapping[str, np.ndarray], batch_size: int) -> None:
    check_batch_size(dataset, batch_size)
    if not streams:
        raise DataError(f"{dataset.split}: found no stream of pairs, expected at least one")
    for name, rows in streams.items():
        if not len(rows):
            raise DataError(
                f"{dataset.split}: found no pairs in stream {name!r}, expected at least one"
            )
        low, high = np.min(rows), np.max(rows)
        if low < 0 or high >= len(dataset):
            raise DataError(
                f"{dataset.split}: found rows {low} to {high} in stream {name!r}, expected 0 to "
                f"{len(dataset) - 1}"
            )
