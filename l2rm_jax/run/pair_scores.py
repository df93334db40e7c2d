"""Collect the values of all rows from batches; the vectors of the images of pairs."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from l2rm_jax.console import progress_bar
from l2rm_jax.data.batches import image_batches
from l2rm_jax.data.features import LazyRows
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.hosts import Share


def collect_rows(
    batches: Iterable[tuple[Any, Int[np.ndarray, " rows"]]],
    score: Callable[[Any], Any],
    total: int,
    title: str,
) -> Any:
    """Score batches and put the values of each batch into its rows.

    Values are fetched from the device while it works on the next batch.

    Args:
      batches: batches with their rows, each row once in all of them; a batch may be padded beyond
        its rows.
      score: maps a batch to an array `[B, ...]`, or to a tree of such arrays.
      total: number of rows.
      title: title of the progress bar.

    Returns:
      Arrays `[total, ...]`, in a tree like those of `score`.
    """
    values = None

    def fetch(part: Any, rows: Int[np.ndarray, " rows"]) -> None:
        nonlocal values
        if values is None:
            values = jax.tree.map(lambda x: np.empty((total, *x.shape[1:]), x.dtype), part)
        leaves = zip(jax.tree.leaves(values), jax.tree.leaves(part), strict=True)
        for all_rows, part_rows in leaves:
            all_rows[rows] = np.asarray(part_rows)[: len(rows)]
        bar.update(len(rows))

    with progress_bar(total, title) as bar:
        started = None
        for batch, rows in batches:
            part = score(batch)
            if started is not None:
                fetch(*started)
            started = part, rows
        if started is not None:
            fetch(*started)
    return values


def encode_images(
    pairs: TrainPairs, encode: Callable[[Batch], Any], batch_size: int, share: Share, title: str
) -> LazyRows:
    """Encode each image of the pairs once, however many captions it has.

    Args:
      pairs: the pairs; images without a pair are not read.
      encode: maps the host's share of a batch of images to the vectors `[B, ...]` of the batch.
      batch_size: images per global batch.
      share: the host's share of each global batch.
      title: title of the progress bar.

    Returns:
      The vectors of the image of each pair, `[pairs, ...]`.
    """
    used, place = np.unique(pairs.stored_image, return_inverse=True)
    starts = range(0, len(used), batch_size)
    batches = (
        (batch, np.arange(start, start + valid))
        for start, (batch, valid) in zip(
            starts, image_batches(pairs.images, batch_size, used, share), strict=True
        )
    )
    return LazyRows(collect_rows(batches, encode, len(used), title), place)
