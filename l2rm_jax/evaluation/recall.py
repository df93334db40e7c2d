"""Ranks and recalls from a similarity matrix, in pure NumPy.

Ties: the reference ranks by `numpy.argsort(row)[::-1]`, a quicksort whose order of equal scores
depends on the NumPy build and the processor. Here a stable sort is reversed: among equal scores,
the candidate with the higher index comes first. Without ties, both give the same ranks.
"""

import bisect
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

# Captions per image: one number for all images, or an array [I] with one number per image. The
# columns of a similarity matrix are ordered by image: all captions of image 0, then of image 1, ...
Counts = int | Int[np.ndarray, " I"]

RECALL_AT = (1, 5, 10)
DIRECTIONS = ("i2t", "t2i")  # image to text, text to image
TABLE_WIDTH = 80
NAME_LINES = textwrap.TextWrapper(TABLE_WIDTH, break_long_words=False, break_on_hyphens=False)
_ANY_SPLIT = re.compile(r"(?<![^ ])custom(?=,|$)")  # the protocol, in the name of a row
QUERY_BLOCK = 128  # queries ranked at once, so that their scores stay in the processor's cache


def describe_counts(captions_per_image: Counts) -> str:
    """Format the captions per image: `5`, or `12 to 62` if the images differ."""
    fewest, most = np.min(captions_per_image), np.max(captions_per_image)
    return f"{fewest}" if fewest == most else f"{fewest} to {most}"


def text_ranks(sims: Float[np.ndarray, "I M"], captions_per_image: Counts) -> Int[np.ndarray, " I"]:
    """Rank (0 = first) of each image's best own caption, among all captions."""
    owner = _image_of_captions(sims, captions_per_image)
    captions = np.arange(len(owner))
    starts = np.searchsorted(owner, np.arange(len(sims)))
    own = sims[owner, captions]
    highest = own == np.maximum.reduceat(own, starts)[owner]
    # Of several own captions with the highest score, the last one ranks first.
    best = np.maximum.reduceat(np.where(highest, captions, -1), starts)
    return ranks_of(sims, best)


def image_ranks(
    sims: Float[np.ndarray, "I M"], captions_per_image: Counts
) -> Int[np.ndarray, " M"]:
    """Rank (0 = first) of each caption's own image, among all images."""
    return ranks_of(sims.T, _image_of_captions(sims, captions_per_image))


def _image_of_captions(
    sims: Float[np.ndarray, "I M"], captions_per_image: Counts
) -> Int[np.ndarray, " M"]:
    """The image of each caption."""
    return np.repeat(np.arange(len(sims)), captions_per_image)


def ranks_of(
    sims: Float[np.ndarray, "Q C"], target: Int[np.ndarray, " Q"]
) -> Int[np.ndarray, " Q"]:
    """Rank of candidate `target[q]` for query q: the number of candidates before it."""
    ranks = np.empty(len(sims), np.int64)
    candidates = np.arange(sims.shape[1])
    for start in range(0, len(sims), QUERY_BLOCK):
        rows = slice(start, start + QUERY_BLOCK)
        block, own = sims[rows], target[rows, None]
        score = np.take_along_axis(block, own, axis=1)
        before = (block > score) | ((block == score) & (candidates > own))
        ranks[rows] = np.count_nonzero(before, axis=1)
    return ranks


def dual_softmax(
    sims: Float[np.ndarray, "I M"], temperature: float, query_axis: int
) -> Float[np.ndarray, "I M"]:
    """Multiply similarities by their softmax over the queries, for one direction of retrieval.

    The product lowers candidates that are close to many queries. The ranking of one query then
    depends on all the others, so the recalls cannot be compared with those of plain similarities.

    Args:
      sims: similarities. Negative similarities are returned unchanged, so that they rank after all
        products: a factor below 1 would raise them. If none is positive (negated distances), the
        lowest is first subtracted from all.
      temperature: similarities are divided by it inside the softmax.
      query_axis: 0 to rank captions (the queries are images), 1 to rank images.

    References:
      Cheng et al., "Improving Video-Text Retrieval by Multi-Stream Corpus Alignment and Dual
      Softmax Loss", 2021, https://arxiv.org/abs/2109.04290
    """
    if sims.max() <= 0:
        sims = sims - sims.min()
    # In float32, many softmax values would underflow to 0 and their products would tie.
    scores = sims.astype(np.float64)
    scores -= scores.max(query_axis, keepdims=True)
    scores /= temperature
    np.exp(scores, out=scores)
    scores /= scores.sum(query_axis, keepdims=True)
    scores *= sims
    return np.where(sims > 0, scores, sims)


def recalls(
    sims: Float[np.ndarray, "I M"], captions_per_image: Counts, temperature: float = 0.0
) -> dict[str, float]:
    """Recalls, median and mean ranks of both directions, and rSum.

    Args:
      sims: similarities.
      captions_per_image: as `Counts`.
      temperature: ranks `dual_softmax` scores at this temperature; 0 ranks the similarities.

    Returns:
      `i2t_r1`, `i2t_r5`, `i2t_r10` (percent of the queries), `i2t_median`, `i2t_mean` (ranks,
      1 = first), the same for `t2i`, `rsum` (sum of the six recalls, 0 to 600), and `images`, the
      number of images.

    Raises:
      ValueError: the matrix does not fit `captions_per_image`, an image has no caption, or the
        matrix holds NaN or infinity.
    """
    images, captions = sims.shape
    counts = np.broadcast_to(captions_per_image, images)
    if captions != counts.sum() or counts.min() < 1:
        raise ValueError(
            f"similarities: found {images} images x {captions} captions, expected "
            f"{describe_counts(captions_per_image)} captions per image"
        )
    if not np.isfinite([sims.min(), sims.max()]).all():  # NaN propagates through both
        raise ValueError("similarities: found NaN or infinity, expected finite numbers")
    ranks = []
    for query_axis, rank in enumerate((text_ranks, image_ranks)):
        scores = dual_softmax(sims, temperature, query_axis) if temperature else sims
        ranks.append(rank(scores, captions_per_image))
    return recalls_from_ranks(*ranks)


def recalls_from_ranks(i2t: Int[np.ndarray, " I"], t2i: Int[np.ndarray, " M"]) -> dict[str, float]:
    """The result of `recalls`, computed from `text_ranks` (`i2t`) and `image_ranks` (`t2i`)."""
    row: dict[str, float] = {"images": len(i2t)}
    for direction, ranks in zip(DIRECTIONS, (i2t, t2i), strict=True):
        for k in RECALL_AT:
            row[f"{direction}_r{k}"] = 100.0 * float(np.mean(ranks < k))
        row[f"{direction}_median"] = float(np.floor(np.median(ranks)) + 1)
        row[f"{direction}_mean"] = float(np.mean(ranks) + 1)
    row["rsum"] = _recall_sum(row)
    return row


def fold_recalls(
    sims: Float[np.ndarray, "I M"], captions_per_image: Counts, folds: int, temperature: float = 0.0
) -> dict[str, float]:
    """Means of `recalls` over consecutive folds of equal size.

    COCO 1K is the mean over 5 folds of 1000 of its 5000 test images.

    Args:
      sims, captions_per_image, temperature: as for `recalls`.
      folds: number of folds; each ranks its own images and captions only.

    Raises:
      ValueError: as `recalls`, or the images do not divide into `folds` equal parts.
    """
    images = sims.shape[0]
    if images % folds:
        raise ValueError(f"found {images} images, expected a multiple of {folds} (folds)")
    counts = np.broadcast_to(captions_per_image, images)
    column_starts = np.concatenate([[0], np.cumsum(counts)])
    rows = []
    for first in range(0, images, images // folds):
        last = first + images // folds
        block = sims[first:last, column_starts[first] : column_starts[last]]
        rows.append(recalls(block, counts[first:last], temperature))
    return mean_row(rows)


def mean_row(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each value over rows with the same keys."""
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def chance_recalls(images: int, captions_per_image: Counts) -> dict[str, float]:
    """Expected result of `recalls` for random rankings.

    With M captions, an image with c of them finds none among the first k with the probability
    C(M - k, c) / C(M, c). Its best caption has the expected rank (M + 1) / (c + 1). A caption finds
    its image at every rank with the same probability. Recalls and mean ranks are exact; the medians
    are the medians of the distribution of ranks.
    """
    counts = np.broadcast_to(captions_per_image, images)
    captions = int(counts.sum())
    distinct_counts, image_counts = np.unique(counts, return_counts=True)

    def text_found(k: int) -> float:
        """Share of the images that find one of their captions among the first k."""
        found = [
            1 - math.comb(captions - k, int(c)) / math.comb(captions, int(c))
            for c in distinct_counts
        ]
        return float(np.average(found, weights=image_counts))

    def image_found(k: int) -> float:
        return k / images

    row: dict[str, float] = {"images": images}
    sizes, means = (captions, images), ((captions + 1) / (counts + 1), (images + 1) / 2)
    for direction, found, size, mean in zip(
        DIRECTIONS, (text_found, image_found), sizes, means, strict=True
    ):
        for k in RECALL_AT:
            row[f"{direction}_r{k}"] = 100.0 * found(min(k, size))
        half = bisect.bisect_left(range(1, size), 0.5, key=found)
        row[f"{direction}_median"] = float(half + 1)
        row[f"{direction}_mean"] = float(np.mean(mean))
    row["rsum"] = _recall_sum(row)
    return row


def fold_chance(images: int, captions_per_image: Counts, folds: int) -> dict[str, float]:
    """Means of `chance_recalls` over folds, as in `fold_recalls`."""
    counts = np.broadcast_to(captions_per_image, images)
    return mean_row([chance_recalls(len(part), part) for part in np.split(counts, folds)])


def recall_table(rows: Mapping[str, Mapping[str, Any]], split: str = "") -> str:
    """Text table of at most 80 columns: recalls, median and mean ranks, rSum of each named row.

    A long name gets separate lines, which break only at spaces. So do rows of two-stage scoring,
    whose name is followed by the percentages of queries whose matches the proposer missed
    (`i2t_lost`, `t2i_lost`).

    Args:
      rows: row name to the keys of `recalls`.
      split: name of the split, used as the name of rows of the protocol `custom`.
    """
    if split:
        rows = {_ANY_SPLIT.sub(split, name): row for name, row in rows.items()}
    keys = [*(f"r{k}" for k in RECALL_AT), "median", "mean"]
    titles = [*(f"R@{k}" for k in RECALL_AT), "MedR", "MeanR"]
    cells = [["images", *titles, *titles, "rSum"]]
    for row in rows.values():
        numbers = [_number(row[f"{direction}_{key}"]) for direction in DIRECTIONS for key in keys]
        cells.append([f"{row['images']:.0f}", *numbers, _number(row["rsum"])])
    widths = [max(map(len, column)) + 1 for column in zip(*cells, strict=True)]
    for first in (1, 1 + len(keys), 1 + 2 * len(keys)):  # of a direction, and rSum
        widths[first] += 1
    lines = ["".join(map(str.rjust, line, widths)) for line in cells]
    room = TABLE_WIDTH - sum(widths)
    name_width = max((len(name) for name in rows if len(name) <= room), default=0)
    groups = [sum(widths[1 : 1 + len(keys)]), sum(widths[1 + len(keys) : -1])]
    directions = ("image to text", "text to image")
    head = "".join(text.center(width) for text, width in zip(directions, groups, strict=True))
    table = [" " * (name_width + widths[0]) + head.rstrip(), " " * name_width + lines[0]]
    for (name, row), line in zip(rows.items(), lines[1:], strict=True):
        if "i2t_lost" in row:
            name += f" (lost: i2t {row['i2t_lost']:.1f}%, t2i {row['t2i_lost']:.1f}%)"
        if len(name) > name_width:
            table += NAME_LINES.wrap(name)
            name = ""
        table.append(name.ljust(name_width) + line)
    return "\n".join(table)


def _number(value: float) -> str:
    """Format a recall or rank with one decimal; large numbers without decimals."""
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _recall_sum(row: Mapping[str, float]) -> float:
    """The rSum of a row."""
    return sum(row[f"{direction}_r{k}"] for direction in DIRECTIONS for k in RECALL_AT)
