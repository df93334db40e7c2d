"""Find runs of rows whose captions fit the images of earlier or later rows.

If one side of a list has lost or gained an entry, all rows after it are shifted. For each offset,
a row is evidence for a shift if its caption fits the other row's image better than its own, and
evidence against it if not. A run of rows is reported if its evidence is not explained by chance.

References:
    Page, Continuous Inspection Schemes, Biometrika 1954: the cumulative sum of log-likelihood
    ratios, which falls below its minimum before a run and rises within.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32, Int

from l2rm_jax.console import progress_bar
from l2rm_jax.executors import LOCAL, Executor
from l2rm_jax.linear.cca import Cca
from l2rm_jax.linear.rows import BLOCK, Rows

REACH = 5  # largest offset, in rows
SHORTEST = 20  # fewest rows of a run
_FITS = 0.9  # share of rows of a shifted run that are evidence for it; 0.5 for random rows
_SURE = 0.01  # probability of a run by chance anywhere in the data
_FOR, _AGAINST = np.log(_FITS / 0.5), np.log((1 - _FITS) / 0.5)


class Shift(NamedTuple):
    """Run of rows whose captions fit the images of other rows, both ends included.

    Attributes:
      first: first row.
      last: last row.
      offset: the image of row k + offset fits the caption of row k.
    """

    first: int
    last: int
    offset: int


def find_shifts(
    models: list[Cca],
    images: Rows,
    captions: Rows,
    image_of: Int[np.ndarray, " pairs"],
    pair_fold: Int[np.ndarray, " pairs"],
    executor: Executor = LOCAL,
) -> list[Shift]:
    """Find runs of shifted rows, in the order of the rows.

    Args:
      models: model of each fold, fitted without it.
      images: [images, di] vectors.
      captions: [pairs, dc] vectors, in the order of the user's rows.
      image_of: row of the image that each caption is stored with.
      pair_fold: fold of each pair.
      executor: compares the rows.
    """
    pairs = len(image_of)
    offsets = np.array([o for o in range(-REACH, REACH + 1) if o])
    other = np.arange(pairs)[:, None] + offsets
    is_there = (other >= 0) & (other < pairs)
    other = np.where(is_there, other, 0)
    counts = is_there & (image_of[other] != image_of[:, None])
    fits = _fits_better(models, images, captions, image_of, pair_fold, offsets, executor)
    threshold = np.log(pairs * len(offsets) / _SURE)
    gains = np.where(counts, np.where(fits, _FOR, _AGAINST), 0.0)
    found = [
        (gain, Shift(first, last, int(offset)))
        for offset, column in zip(offsets, gains.T, strict=True)
        for first, last, gain in _runs(column, threshold)
        if last - first + 1 >= SHORTEST
    ]
    # A run of captions of one image fits several offsets: keep the offset with most evidence.
    kept: list[Shift] = []
    for _, shift in sorted(found, key=lambda x: -x[0]):
        if all(shift.last < other.first or shift.first > other.last for other in kept):
            kept.append(shift)
    return sorted(kept)


def _runs(gains: np.ndarray, threshold: float) -> list[tuple[int, int, float]]:
    """Find maximal runs whose sum exceeds a threshold: first row, last row and sum."""
    sums = np.cumsum(gains)
    lowest = np.minimum.accumulate(np.append(0, sums[:-1]))
    if not len(gains) or (sums - lowest).max() <= threshold - 1e-6:
        return []  # nearly always, and the Python loop below is slow
    runs, start, total, best, end = [], 0, 0.0, 0.0, -1
    for row, gain in enumerate(gains):
        if total <= 0:
            start, total, best = row, 0.0, 0.0
        total += gain
        if total > best:
            best, end = total, row
        if best > threshold and total < best - threshold:
            runs.append((start, end, best))
            total = 0.0
    if total > 0 and best > threshold:
        runs.append((start, end, best))
    return runs


def _fits_better(
    models: list[Cca],
    images: Rows,
    captions: Rows,
    image_of: np.ndarray,
    pair_fold: np.ndarray,
    offsets: np.ndarray,
    executor: Executor,
) -> Bool[np.ndarray, "pairs offsets"]:
    """Return whether each caption fits the image of each other row better than its own."""
    stacked = Cca(*(np.stack(part) for part in zip(*models, strict=True)))
    shared = [executor.put(value) for value in (stacked, images, captions)]
    pairs, parts = len(image_of), []

    def calls() -> Iterator[tuple]:
        for start in range(0, pairs, BLOCK):
            rows = np.arange(start, start + BLOCK)
            around = np.arange(start - REACH, start + BLOCK + REACH)
            rows, around = (x.clip(0, pairs - 1) for x in (rows, around))
            yield *shared, image_of[around], rows, pair_fold[rows], offsets

    with progress_bar(pairs, "shifted rows") as bar:
        for fits in executor.map(_fits_within, calls()):
            parts.append(fits[: pairs - BLOCK * len(parts)])
            bar.update(len(parts[-1]))
    return np.concatenate(parts)


def _fits_within(
    models: Cca,
    images: Rows,
    captions: Rows,
    image_rows: Int[np.ndarray, " n"],
    rows: Int[np.ndarray, " B"],
    fold: Int[np.ndarray, " B"],
    offsets: Int[np.ndarray, " s"],
) -> Bool[np.ndarray, "B s"]:
    """Compute `_fits_better` for a block of rows; `image_rows` add `REACH` rows on each side."""
    seen, said = (np.asarray(x, np.float32) for x in (images[image_rows], captions[rows]))
    values = np.asarray(_similarities(models, seen, said, fold, np.append(offsets, 0) + REACH))
    return values[:, :-1] > values[:, -1:]


@jax.jit
def _similarities(
    models: Cca,
    images: Float32[jax.Array, "n di"],
    captions: Float32[jax.Array, "B dc"],
    fold: Int[jax.Array, " B"],
    shifts: Int[jax.Array, " s"],
) -> Float32[jax.Array, "B s"]:
    """Compute cosines of each caption with images some rows away, by the model of its fold."""

    def of_model(values: jax.Array, model_and_fold: tuple[Cca, jax.Array]) -> tuple:
        model, number = model_and_fold
        image_codes = model.encode_images(images)
        codes = model.encode_captions(captions)
        rows = jnp.arange(len(codes))[:, None] + shifts[None]
        found = jnp.einsum("bk,bsk->bs", codes, image_codes[rows])
        return jnp.where(fold[:, None] == number, found, values), None

    nothing = jnp.zeros((len(captions), len(shifts)), jnp.float32)
    return jax.lax.scan(of_model, nothing, (models, jnp.arange(len(models.correlations))))[0]
