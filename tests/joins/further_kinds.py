"""Further kinds: parts of ids, keys of both sides, groups, gaps, and two rules on one piece."""

import numpy as np

from tests.joins.kinds import KINDS, all_rows, in_piece, kind, of_images, piece
from tests.joins.kinds_of_order import SHUFFLED, shuffle, sorted_images
from tests.joins.tables import Rows

FIRST = {*KINDS}  # kinds that the search was developed on


@kind("sorted_by_id", ids="parts")
def part_sorted(rng, right, share):
    """Captions are in the order of one part of the ids, the view."""
    return sorted_images(rng, right, share, key=lambda x: x.split("-")[1])


@kind("same_key", ids="parts")
def part_as_key(_rng, right, share):
    """Only one part of the ids was the key; the last image wins."""
    del share
    keys = [x.split("_")[1].split("-")[0] for x in right.ids]
    last = {key: i for i, key in enumerate(keys)}
    return Rows(right.owner, of_images(right, np.array([last[key] for key in keys])))


@kind(
    "keys_disagree", "shifted", "reversed", "reordered_blocks", "swapped_blocks", "seeded_shuffle"
)
def keys_of_captions(rng, right, share):
    """Captions have the names of their images as keys, but were joined in a random order."""
    a, b = piece(rng, len(right.owner), share)
    caption = all_rows(right)
    caption[a:b] = rng.permutation(caption[a:b])
    keys = [f"{right.ids[right.owner[k]]}#{k % right.each}" for k in caption]
    return Rows(right.owner, caption, keys=keys)


@kind("reversed")
def reversed_in_groups(_rng, right, share):
    """The captions of each shard are in reverse order."""
    size = max(8, len(right.owner) // 12)
    groups = all_rows(right) // size
    caption = np.concatenate([x[::-1] for x in _groups(right, size)])
    affected = groups < np.ceil(share * (groups.max() + 1))
    return Rows(right.owner, np.where(affected, caption, all_rows(right)), groups=groups)


@kind("rolled", "shifted", "pieces_shifted")
def late_in_groups(_rng, right, share):
    """The captions of each shard are one row late, and the last one comes first."""
    size = max(8, len(right.owner) // 12)
    groups = all_rows(right) // size
    caption = np.concatenate([np.roll(x, 1) for x in _groups(right, size)])
    affected = groups < np.ceil(share * (groups.max() + 1))
    return Rows(right.owner, np.where(affected, caption, all_rows(right)), groups=groups)


def _groups(right, size):
    rows = all_rows(right)
    return [rows[s : s + size] for s in range(0, len(rows), size)]


@kind("seeded_shuffle", "shifted")
def shuffled_and_late(rng, right, share):
    """A piece was shuffled with a usual seed, then its captions were one row late."""
    seed, which = int(rng.choice([0, 42, 123])), str(rng.choice(SHUFFLED))
    return in_piece(rng, right, share, lambda rows: np.roll(shuffle(rows, which, seed), 1))


@kind("sorted_by_id", "shifted")
def sorted_and_late(rng, right, share):
    """Captions were sorted by id, and one row is missing at their start."""
    a, b = piece(rng, len(right.ids), share, 40)
    order = np.arange(len(right.ids))
    order[a:b] = np.roll(sorted(range(a, b), key=lambda i: right.ids[i]), -1)
    return Rows(right.owner, of_images(right, order))


@kind("reversed", "shifted", "swapped_blocks", "reordered_blocks")
def reversed_and_late(rng, right, share):
    """One piece is in reverse order, another one is two rows late."""
    total = len(right.owner)
    size = max(20, round(min(share, 0.9) * total / 2))
    a = int(rng.integers(0, total - 2 * size + 1))
    caption = all_rows(right)
    caption[a : a + size] = caption[a : a + size][::-1]
    caption[a + size + 2 : a + 2 * size] = caption[a + size : a + 2 * size - 2].copy()
    return Rows(right.owner, caption)


@kind("shifted")
def shifted_with_gaps(rng, right, share):
    """Captions are one row late, except for short runs that somebody mended."""
    a, b = piece(rng, len(right.owner), share, 40)
    caption = all_rows(right)
    caption[a + 1 : b] = caption[a : b - 1].copy()
    for start in rng.integers(a + 10, b - 10, max(1, (b - a) // 100)).tolist():
        caption[start : start + 2] = all_rows(right)[start : start + 2]
    return Rows(right.owner, caption)
