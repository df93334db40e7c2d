"""The batches of a training epoch: streams of pairs in an order that a seed fixes."""

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int

from l2rm_jax.data.batches import (
    BUCKETS,
    MAX_WORDS,
    WHOLE,
    Batch,
    BatchReader,
    read_ahead,
    stream_seed,
)
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.devices.hosts import Share
from l2rm_jax.errors import ConfigError, DataError


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
        self._reader = BatchReader(dataset, buckets, max_words, share)
        self._orders = {
            name: _Order(np.asarray(rows), batch_size, stream_seed(seed, epoch, name))
            for name, rows in streams.items()
        }
        first = np.asarray(next(iter(streams.values())))
        self._steps = max(1, len(first) // batch_size)
        behind = max(0, queue_length - batch_size) if "mismatched" in streams else 0
        self._batches_behind = behind // batch_size
        rng = np.random.default_rng(stream_seed(seed, epoch, "queue"))
        images = len(dataset.images)
        self._before = rng.choice(images, behind, replace=behind > images).reshape(-1, batch_size)

    def __len__(self) -> int:
        return self._steps

    def iterate(self, start_step: int = 0) -> Iterator[dict[str, Batch]]:
        """The steps from `start_step` on, exactly as a pass from 0 has them.

        Raises:
          DataError: while iterating, when a feature is not finite.
        """
        return read_ahead(self._step, range(start_step, len(self)))

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
