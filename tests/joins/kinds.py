"""Kinds of misaligned tables: rows that are late, in one place or many, and blocks.

A kind is a function (rng, right table, share) -> rows.

`share` is the share of the table that is affected: the length of a piece, a rate, or how many keys
collide. Each kind says how its ids look and the names of a finding that are right: some
misalignments leave the same table behind.
"""

from collections.abc import Callable

import numpy as np

from tests.joins.tables import Right, Rows

Kind = Callable[[np.random.Generator, Right, float], Rows]
KINDS: dict[str, Kind] = {}
BLOCKS = "swapped_blocks", "reordered_blocks"


def kind(*names: str, ids: str = "names", each: int = 0) -> Callable[[Kind], Kind]:
    """Register a kind with the right names of its finding; `each`: captions per image it needs."""

    def add(function: Kind) -> Kind:
        function.names, function.ids, function.each = names, ids, each
        KINDS[function.__name__] = function
        return function

    return add


def piece(rng: np.random.Generator, rows: int, share: float, least: int = 8) -> tuple[int, int]:
    """First row and end of a piece of the table at random."""
    size = min(rows, max(least, round(share * rows)))
    start = int(rng.integers(0, rows - size + 1))
    return start, start + size


def of_images(right: Right, order: np.ndarray) -> np.ndarray:
    """Captions image by image, images in another order."""
    return (np.asarray(order)[:, None] * right.each + np.arange(right.each)).ravel()


def zipped(right: Right, before, images, captions, after) -> Rows:
    """Rows of which a piece pairs two lists, as long as the shorter one."""
    size = min(len(images), len(captions))
    image = np.concatenate([before, images[:size], after])
    return Rows(right.owner[image], np.concatenate([before, captions[:size], after]))


def in_piece(rng, right: Right, share: float, reorder: Callable, least: int = 8) -> Rows:
    """Captions of a piece in another order."""
    a, b = piece(rng, len(right.owner), share, least)
    caption = all_rows(right)
    caption[a:b] = reorder(caption[a:b])
    return Rows(right.owner, caption)


def all_rows(right: Right) -> np.ndarray:
    return np.arange(len(right.owner))


@kind()
def clean(_rng, right, _share):
    return Rows(right.owner, all_rows(right))


# One place


@kind("shifted")
def late_by_one(rng, right, share):
    """Row k has the caption of row k - 1: a header was counted."""
    a, b = piece(rng, len(right.owner), share)
    rows = all_rows(right)
    return zipped(right, rows[:a], rows[a + 1 : b], rows[a : b - 1], rows[b:])


@kind("shifted")
def early_by_one(rng, right, share):
    a, b = piece(rng, len(right.owner), share)
    rows = all_rows(right)
    return zipped(right, rows[:a], rows[a : b - 1], rows[a + 1 : b], rows[b:])


@kind("shifted", ids="padded")
def shard_late(rng, right, share):
    """One of several shards is off by two to nine rows."""
    a, b = piece(rng, len(right.owner), min(share, 0.9), 24)
    d = int(rng.integers(2, 10))
    rows = all_rows(right)
    return zipped(right, rows[:a], rows[a + d : b], rows[a : b - d], rows[b:])


@kind("shifted")
def lost_caption(rng, right, share):
    """One caption is lost: all rows from there to the end are shifted."""
    rows = all_rows(right)
    a = max(1, round((1 - share) * len(rows)) - int(rng.integers(1, 9)))
    return zipped(right, rows[:a], rows[a:], rows[a + 1 :], rows[:0])


@kind("shifted", ids="number")
def lost_and_back(rng, right, share):
    """One caption is lost, and an image later: the rows between are shifted."""
    a, b = piece(rng, len(right.owner), share)
    rows = all_rows(right)
    return zipped(right, rows[:a], rows[a : b - 1], rows[a + 1 : b], rows[b:])


@kind("shifted", ids="padded")
def inserted_row(rng, right, share):
    """One caption stands twice: all rows after it are shifted."""
    rows = all_rows(right)
    a = max(1, round((1 - share) * len(rows)) - int(rng.integers(1, 9)))
    return Rows(right.owner, np.concatenate([rows[:a], rows[a - 1 :]])[: len(rows)])


@kind(*BLOCKS)
def rotated(rng, right, share):
    """A piece starts at another row and wraps around."""
    a, b = piece(rng, len(right.owner), share, 16)
    d = int(rng.integers((b - a) // 8 + 1, b - a - (b - a) // 8))
    rows = all_rows(right)
    rows[a:b] = np.roll(rows[a:b], d)
    return Rows(right.owner, rows)


@kind("shifted", ids="number")
def lag(rng, right, share):
    """Captions are late by a batch of 32 or 64 rows."""
    a, b = piece(rng, len(right.owner), share, 24)
    d = min(int(rng.choice([32, 64])), (b - a) // 3)
    rows = all_rows(right)
    return zipped(right, rows[:a], rows[a + d : b], rows[a : b - d], rows[b:])


# Many places


@kind("pieces_shifted", "shifted", ids="padded")
def short_runs(rng, right, share):
    """Runs of 2 to 40 rows are shifted by one."""
    rows, total = all_rows(right), 0
    caption, used = rows.copy(), np.zeros(len(rows), bool)
    while total < share * 0.8 * len(rows):
        size = int(rng.integers(2, 41))
        p = int(rng.integers(0, len(rows) - size - 1))
        if not used[max(0, p - 3) : p + size + 3].any():
            used[p : p + size] = True
            caption[p : p + size] = rows[p + 1 : p + size + 1]
        total += size
    return Rows(right.owner, caption)


@kind("drifting", "shifted", ids="number")
def lost_images(rng, right, share):
    """One image in a hundred is lost, its captions are not: the offset grows."""
    a, b = piece(rng, len(right.owner), share, 24)
    rows = all_rows(right)
    images = np.unique(right.owner[a:b])
    lost = images[rng.random(len(images)) < 0.01]
    lost = lost if len(lost) else rng.choice(images[: len(images) // 2 + 1], 1)
    left = rows[a:b][~np.isin(right.owner[a:b], lost)]
    return zipped(right, rows[:a], left, rows[a:b], rows[b:])


@kind("every_nth")
def every_nth(rng, right, share):
    """Every n-th row has the caption of the row, or the image, before it."""
    n = max(2, round(1 / min(share, 0.5)))
    if right.each > 1 and n % right.each == 0:
        n += 1
    r = int(rng.integers(0, n))
    rows = all_rows(right)
    late = rows[(rows % n == r) & (rows >= right.each)]
    caption = rows.copy()
    caption[late] = late - right.each
    return Rows(right.owner, caption)


@kind("neighbours")
def swapped_neighbours(rng, right, share):
    images = len(right.ids)
    a, b = piece(rng, images, share)
    b -= (b - a) % 2
    order = np.arange(images)
    order[a:b] = order[a:b].reshape(-1, 2)[:, ::-1].ravel()
    return Rows(right.owner, of_images(right, order))


@kind("drifting", "shifted", ids="padded", each=5)
def miscounted(rng, right, share):
    """Some images have four captions, and five were counted: the offset grows."""
    images = len(right.ids)
    a, b = piece(rng, images, share)
    few = rng.random(images) < 0.01
    few[: a + 1], few[b:] = False, False
    few[a + 1 + (b - a) // 4] = True
    gone = of_images(right, np.flatnonzero(few))[right.each - 1 :: right.each]
    caption = np.setdiff1d(all_rows(right), gone)
    return Rows(right.owner[: len(caption)], caption)


# Blocks


@kind(*BLOCKS, ids="padded")
def swapped_shards(rng, right, share):
    rows = len(right.owner)
    size = max(6, round(min(share, 0.66) * rows / 2))
    a = int(rng.integers(0, max(1, rows - 3 * size)))
    b = a + size + int(rng.integers(0, max(1, rows - a - 2 * size)))
    caption = all_rows(right)
    caption[a : a + size], caption[b : b + size] = (
        caption[b : b + size].copy(), caption[a : a + size].copy(),
    )  # fmt: skip
    return Rows(right.owner, caption)


@kind("reversed")
def reversed_piece(rng, right, share):
    return in_piece(rng, right, share, lambda x: x[::-1].copy())


@kind(*BLOCKS, ids="padded")
def shards_as_text(rng, right, share):
    """Shards of one side were read in the order 0, 1, 10, 11, 2."""
    shards = int(rng.integers(12, 31))

    def reorder(rows):
        parts = np.array_split(rows, shards)
        return np.concatenate([parts[k] for k in sorted(range(shards), key=str)])

    return in_piece(rng, right, share, reorder, 48)


@kind(*BLOCKS)
def batches_shuffled(rng, right, share):
    size = 64 if share * len(right.owner) > 1000 else 16

    def reorder(rows):
        parts = [rows[s : s + size] for s in range(0, len(rows), size)]
        return np.concatenate([parts[k] for k in rng.permutation(len(parts))])

    return in_piece(rng, right, share, reorder, 48)


@kind("repeated", ids="number")
def block_repeated(rng, right, share):
    """The captions of a block stand with the next block too."""
    rows = all_rows(right)
    size = max(6, round(min(share, 0.5) * len(rows)))
    a = int(rng.integers(0, len(rows) - 2 * size + 1))
    rows[a + size : a + 2 * size] = rows[a : a + size].copy()
    return Rows(right.owner, rows)
