"""Kinds of misaligned tables: orders, keys that collide, and kinds that nobody can put back."""

import random
from collections.abc import Callable

import numpy as np

from tests.joins.kinds import all_rows, in_piece, kind, of_images, piece
from tests.joins.tables import Rows

SHUFFLED = ("RandomState", "default_rng", "random")
UNREPAIRED = ("other_split", "shuffled_in_batches", "captions_sorted", "clean")

# Orders


def dealt(rows: np.ndarray, lists: int) -> np.ndarray:
    return np.concatenate([rows[k::lists] for k in range(lists)])


def in_turn(rows: np.ndarray, lists: int) -> np.ndarray:
    result = np.empty_like(rows)
    result[dealt(np.arange(len(rows)), lists)] = rows
    return result


@kind("interleaved")
def interleaved(rng, right, share):
    lists = int(rng.choice([2, 3, 4, 8, 16]))
    return in_piece(rng, right, share, lambda x: in_turn(x, lists), 24)


@kind("dealt", ids="padded")
def dealt_out(rng, right, share):
    lists = int(rng.choice([2, 3, 4, 8, 16]))
    return in_piece(rng, right, share, lambda x: dealt(x, lists), 24)


@kind("caption_major", each=5)
def caption_major(rng, right, share):
    a, b = (x * right.each for x in piece(rng, len(right.ids), share))
    caption = all_rows(right)
    caption[a:b] = caption[a:b].reshape(-1, right.each).T.ravel()
    return Rows(right.owner, caption)


@kind("by_caption_number", ids="padded", each=5)
def others_late(rng, right, share):
    """The image before has all captions of an image but its first."""
    a, b = piece(rng, len(right.ids), share)
    caption = all_rows(right).reshape(-1, right.each)
    caption[a + 1 : b, 1:] = caption[a : b - 1, 1:].copy()
    return Rows(right.owner, caption.ravel())


def sorted_images(rng, right, share, key=str, at: int | None = None) -> Rows:
    """Captions of a piece in the order of a key of their images; around an image `at`."""
    images = len(right.ids)
    a, b = piece(rng, images, share, 16)
    if at is not None and share < 1:
        size = b - a
        a = int(np.clip(at - size // 3, 0, images - size))
        b = a + size
    order = np.arange(images)
    order[a:b] = sorted(range(a, b), key=lambda i: key(right.ids[i]))
    return Rows(right.owner, of_images(right, order))


@kind("sorted_by_id", ids="number")
def text_order(rng, right, share):
    """Captions in the order of the ids as text, images in order of number."""
    digits = np.array([len(x) for x in right.ids])
    *_, last = np.flatnonzero(np.diff(digits, prepend=digits[0]))
    return sorted_images(rng, right, share, at=last)


@kind("sorted_by_id")
def id_sorted(rng, right, share):
    return sorted_images(rng, right, share)


@kind("sorted_by_id", ids="case")
def case_order(rng, right, share):
    """One side has capitals first, the other ignores case."""
    return sorted_images(rng, right, share)


@kind("sorted_by_text_length")
def length_order(rng, right, share):
    """Vectors were computed from the longest to the shortest caption, and left in that order."""
    a, b = piece(rng, len(right.owner), share, 16)
    caption = all_rows(right)
    caption[a:b] = a + np.argsort([-len(right.texts[k]) for k in range(a, b)], kind="stable")
    return Rows(right.owner, caption, has_right_texts=True)


@kind("set_order", ids="coco")
def set_order(rng, right, share):
    a, b = piece(rng, len(right.ids), share, 16)
    order = np.arange(len(right.ids))
    number = {int(right.ids[i].split(".")[0]): i for i in range(a, b)}
    order[a:b] = [number[k] for k in set(list(number))]
    return Rows(right.owner, of_images(right, order))


def shuffle(rows: np.ndarray, which: str, seed: int) -> np.ndarray:
    """Shuffle by a usual generator: `numpy.random.RandomState`, `default_rng` or `random`."""
    if which == "RandomState":
        return rows[np.random.RandomState(seed).permutation(len(rows))]
    if which == "default_rng":
        return rows[np.random.default_rng(seed).permutation(len(rows))]
    mixed = rows.tolist()
    random.Random(seed).shuffle(mixed)
    return np.array(mixed)


@kind("seeded_shuffle")
def seeded_shuffle(rng, right, share):
    seed, which = int(rng.choice([0, 1, 42, 123, 1234])), str(rng.choice(SHUFFLED))
    return in_piece(rng, right, share, lambda rows: shuffle(rows, which, seed))


# Keys


@kind("off_by_number", "shifted", ids="number")
def id_plus_one(rng, right, share):
    """The number in the key of each caption is one too high; numbers have gaps."""
    number = [int(x.split(".")[0]) for x in right.ids]
    place = {k: i for i, k in enumerate(number)}
    a, b = piece(rng, len(number), share)
    images, captions = [], []
    for i, k in enumerate(number):
        j = place.get(k + 1) if a <= i < b else i
        if j is not None and (j < b or i >= b or j == i):
            images += [i] * right.each
            captions += of_images(right, np.array([j])).tolist()
    return Rows(np.array(images), np.array(captions))


def last_wins(ids: list[str], key: Callable[[str], object]) -> np.ndarray:
    """For each image the last one with the same key."""
    holds = {key(name): i for i, name in enumerate(ids)}
    return np.array([holds[key(name)] for name in ids])


@kind("same_key", ids="hash")
def truncated_id(_rng, right, share):
    """Ids were cut to so few characters that some are equal; the last one wins."""
    wanted, best = min(share, 0.6), None
    for size in range(1, 10):
        source = last_wins(right.ids, lambda x, size=size: x[:size])
        lost = (source != np.arange(len(source))).mean()
        if lost and (best is None or abs(np.log(lost / wanted)) < best[0]):
            best = abs(np.log(lost / wanted)), source
    return Rows(right.owner, of_images(right, best[1]))


@kind("same_key", ids="folder")
def same_names(rng, right, share):
    """Only the file name was the key, and folders have equal names; the last one wins."""
    images = len(right.ids)
    a, b = piece(rng, images, share, 16)
    order = np.arange(images)
    order[a:b] = a + last_wins(right.ids[a:b], lambda x: x.split("/")[-1])
    return Rows(right.owner, of_images(right, order))


@kind("modulo", "repeated", ids="padded")
def modulo(_rng, right, share):
    """Row k has caption k modulo a period."""
    period = max(8, round(len(right.ids) * (1 - min(share, 0.75))))
    return Rows(right.owner, of_images(right, np.arange(len(right.ids)) % period))


# Not repaired


@kind("unrelated", ids="spare")
def other_split(rng, right, share):
    """A piece has captions of images that are not in the table."""
    count, total = len(right.spare), len(right.owner)
    a, b = piece(rng, total, min(share, count / total))
    caption = all_rows(right)
    caption[a:b] = total + rng.permutation(count)[: b - a]
    return Rows(right.owner, caption)


@kind("shuffled_within")
def shuffled_in_batches(rng, right, share):
    """Captions are shuffled within each batch of 32 images."""
    images = len(right.ids)
    a, b = piece(rng, images, share, 32)
    order = np.arange(images)
    for s in range(a, b, 32):
        order[s : min(s + 32, b)] = rng.permutation(order[s : min(s + 32, b)])
    return Rows(right.owner, of_images(right, order))


@kind("sorted_alone")
def captions_sorted(rng, right, share):
    a, b = piece(rng, len(right.owner), share, 16)
    caption = all_rows(right)
    caption[a:b] = sorted(range(a, b), key=lambda k: right.texts[k])
    return Rows(right.owner, caption)
