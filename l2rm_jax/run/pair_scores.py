"""Collect the values of all rows from batches."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from l2rm_jax.console import progress_bar


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
