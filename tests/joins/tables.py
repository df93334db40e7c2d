"""Right tables, and tables whose captions stand with wrong images by a known rule.

A right table lists its rows image by image. A kind of `kinds` turns it into rows (image, caption).
The truth of a row is the image that its caption has in the right table, or -1 if the new table does
not list that image. So a finding can be compared with the truth row by row, whatever captions were
swapped at random before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"


class Pairs(NamedTuple):
    """Images [M, d], and the captions of each image in consecutive rows."""

    images: np.ndarray
    captions: np.ndarray
    texts: list[str]
    names: list[str]
    each: int


class Right(NamedTuple):
    """The right table: ids of the images, image of each row, texts, captions per image.

    `spare`: captions of images that are not in the table.
    """

    ids: list[str]
    owner: np.ndarray
    texts: list[str]
    each: int
    spare: np.ndarray


class Rows(NamedTuple):
    """Image and caption of each row, as rows of the right table, and further columns."""

    image: np.ndarray
    caption: np.ndarray
    groups: np.ndarray | None = None  # of each row
    keys: list[str] | None = None  # of each row
    has_right_texts: bool = False  # vectors were misplaced, texts were not


@dataclass(frozen=True, eq=False)
class Case:
    """Arguments of `find_misaligned`, the truth, and the kind."""

    kind: str
    images: np.ndarray
    captions: np.ndarray
    stored: np.ndarray
    truth: np.ndarray
    columns: dict = field(default_factory=dict)

    def arguments(self) -> dict:
        """Arguments of `find_misaligned`."""
        return {
            "images": self.images, "captions": self.captions, "image_of": self.stored,
            **self.columns,
        }  # fmt: skip


def make_case(
    kind: Callable[..., Rows], pairs: Pairs, share: float = 1.0, noise: float = 0.0, seed: int = 0
) -> Case:
    """Misalign a share of a table, after a random swap of a share `noise` of the captions."""
    name = kind.__name__
    rng = np.random.default_rng([seed, len(pairs.images), *name.encode()])
    right = _right(rng, pairs, kind.ids)
    total = len(right.owner)
    content = np.arange(total)
    if noise:
        some = rng.permutation(total)[: round(noise * total)]
        content[some] = content[np.roll(some, 1)]
    rows = kind(rng, right, share)
    first = np.unique(rows.image, return_index=True)[1]
    listed = rows.image[np.sort(first)]  # images in the order in which the table lists them
    place = np.full(len(right.ids), -1)
    place[listed] = np.arange(len(listed))
    own = rows.caption < total
    truth, used = np.full(len(rows.caption), -1), rows.caption.copy()
    truth[own] = place[right.owner[rows.caption[own]]]
    used[own] = content[rows.caption[own]]
    used[~own] = right.spare[rows.caption[~own] - total]
    texts = np.arange(len(used)) if rows.has_right_texts else used
    columns = {
        "ids": [right.ids[i] for i in listed], "texts": [pairs.texts[k] for k in texts],
        "groups": rows.groups, "caption_ids": rows.keys,
    }  # fmt: skip
    images, captions = pairs.images[listed], pairs.captions[used]
    return Case(name, images, captions, place[rows.image], truth, columns)


def synthetic(images: int, each: int, seed: int) -> Pairs:
    """Pairs of a linear model: 24 shared directions, and noise of each side."""
    rng = np.random.default_rng([seed, images, each, 5])
    shared = rng.standard_normal((images, 24))
    into_images, into_captions = rng.standard_normal((24, 48)), rng.standard_normal((24, 64))
    v = shared @ into_images + 2 * rng.standard_normal((images, 48))
    t = np.repeat(shared, each, axis=0) @ into_captions
    t = t + 2 * rng.standard_normal((images * each, 64))
    words = rng.integers(0, 500, (images * each, 12))
    lengths = rng.integers(4, 13, len(words))
    texts = [" ".join(f"w{w}" for w in row[:n]) for row, n in zip(words, lengths, strict=True)]
    names = [f"{rng.integers(1 << 40):010x}.jpg" for _ in range(images)]
    return Pairs(v.astype(np.float32), t.astype(np.float32), texts, names, each)


def flickr8k(directory: Path, images: int, each: int, seed: int, of: slice = slice(None)) -> Pairs:
    """Images of Flickr8k at random, in a random order: mean of the regions, MiniLM's captions."""
    pooled, vectors, texts, names = _flickr8k(directory)
    some = np.arange(len(pooled))[of]
    rows = np.random.default_rng([seed, images, each]).permutation(some)[:images]
    own = (rows[:, None] * 5 + np.arange(each)).ravel()
    return Pairs(
        pooled[rows], vectors[own], [texts[k] for k in own], [names[k] for k in rows], each
    )


@cache
def _flickr8k(directory: Path) -> tuple[np.ndarray, np.ndarray, list[str], list[str]]:
    grid = np.load(directory / "train_ims.npy", mmap_mode="r")
    scale = np.load(directory / "ims_scale.npy")
    pooled = np.concatenate(
        [
            (np.asarray(grid[s : s + 500], np.float32) * scale).mean(1)
            for s in range(0, len(grid), 500)
        ]
    )
    vectors = np.load(directory / "train_minilm.npy").astype(np.float32)
    texts = (directory / "train_caps.txt").read_text(encoding="utf-8").split("\n")
    return pooled, vectors, texts[: len(vectors)], (directory / "train_ids.txt").read_text().split()


def blended(pairs: Pairs, count: int, seed: int) -> Pairs:
    """Any number of pairs: sums of two, with the second moments of the given ones."""
    rng = np.random.default_rng([seed, count])
    one, two = rng.integers(0, len(pairs.images), (2, count))
    mean_v, mean_t = pairs.images.mean(0), pairs.captions.mean(0)
    v, t = pairs.images - mean_v, pairs.captions[:: pairs.each] - mean_t
    half = np.float32(0.5**0.5)
    images, captions = (v[one] + v[two]) * half + mean_v, (t[one] + t[two]) * half + mean_t
    return Pairs(
        images, captions, [f"text {k}" for k in range(count)], [*map(str, range(count))], 1
    )


def walk(pairs: Pairs, captions: int = 1) -> Pairs:
    """The same pairs in an order in which each image is similar to the one before."""
    x = pairs.images - pairs.images.mean(0)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    left, at, order = np.ones(len(x), bool), 0, []
    for _ in range(len(x)):
        order.append(at)
        left[at] = False
        at = int(np.where(left, x @ x[at], -9).argmax())
    return reordered(pairs, np.array(order))


def topics(pairs: Pairs, seed: int = 0) -> Pairs:
    """The same pairs, sorted by clusters of images."""
    x = pairs.images - pairs.images.mean(0)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    centres = x[np.random.default_rng(seed).permutation(len(x))[: max(4, len(x) // 60)]]
    return reordered(pairs, np.argsort((x @ centres.T).argmax(1), kind="stable"))


def reordered(pairs: Pairs, order: np.ndarray) -> Pairs:
    """The same pairs, images in another order."""
    own = (order[:, None] * pairs.each + np.arange(pairs.each)).ravel()
    texts, names = [pairs.texts[k] for k in own], [pairs.names[k] for k in order]
    return Pairs(pairs.images[order], pairs.captions[own], texts, names, pairs.each)


def near_swaps(case: Case, share: float, seed: int) -> Case:
    """The same table with a share of the captions swapped for captions of a similar image."""
    rng = np.random.default_rng([seed, 9])
    x = case.images - case.images.mean(0)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    captions = case.captions.copy()
    for row in rng.permutation(len(captions))[: round(share * len(captions))]:
        image = rng.choice(np.argsort(-(x @ x[case.stored[row]]))[1:6])
        captions[row] = case.captions[rng.choice(np.flatnonzero(case.stored == image))]
    return Case(case.kind, case.images, captions, case.stored, case.truth, case.columns)


def _right(rng: np.random.Generator, pairs: Pairs, style: str) -> Right:
    """The right table with ids in a style; `spare` keeps a tenth of the images out of it."""
    total = len(pairs.images)
    count = total - total // 10 if style == "spare" else total
    ids = _ids(rng, style, count) if style not in ("names", "spare") else list(pairs.names[:count])
    captions = np.arange(total * pairs.each)
    owner = np.repeat(np.arange(count), pairs.each)
    return Right(ids, owner, pairs.texts, pairs.each, captions[len(owner) :])


def _ids(rng: np.random.Generator, style: str, count: int) -> list[str]:
    if style == "padded":
        return [f"img_{k:06}.jpg" for k in range(count)]
    if style == "number":  # running numbers, a tenth of them missing
        return [f"{k}.jpg" for k in np.sort(rng.permutation(round(count / 0.9) + 1)[:count])]
    if style == "coco":
        return [f"{k:012}.jpg" for k in np.sort(rng.permutation(600_000)[:count])]
    if style == "hash":
        return sorted(f"{rng.integers(1 << 40):010x}.jpg" for _ in range(count))
    if style == "case":
        letters = rng.choice([*LETTERS], (2 * count, 11))
        names = sorted({"".join(x) for x in letters})[::2][:count]
        return [f"{x}.mp4" for x in sorted(names, key=lambda x: (x.casefold(), x))]
    if style == "parts":  # shop, running item with gaps, view
        items = np.sort(rng.integers(0, count, count))  # several shops have the same item
        shops = rng.choice(["acme", "bolt", "core", "dale"], count)
        return [
            f"{shop}_{item}-{k % 7}.png"
            for k, (shop, item) in enumerate(zip(shops, items, strict=True))
        ]
    sizes = np.maximum(2, rng.integers(count // 30 + 2, count // 10 + 4, 400))  # folders
    return [f"{f:02}/{k:04}.jpg" for f, size in enumerate(sizes) for k in range(size)][:count]
