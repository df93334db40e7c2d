"""Recall from a similarity matrix, and the protocols of the published tables: NumPy only.

Ties: the reference ranks by `numpy.argsort(row)[::-1]`, a quicksort whose order of equal scores
depends on NumPy's build and the processor. Here the sort is stable, then reversed: of equal scores
the candidate with the higher index comes first. Where nothing is tied the two are the same.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.errors import ConfigError

# Captions of each image: one number for all, or [I] one for each. An image's captions are columns
# in a row, after those of the images before it.
Counts = int | Int[np.ndarray, " I"]

RECALL_AT = (1, 5, 10)
WAYS = ("i2t", "t2i")  # image to text, text to image
BLOCK = 128  # queries ranked at once: what is compared stays in the processor's cache


class Protocol(NamedTuple):
    """What a published table is computed on.

    Attributes:
      images: images of the test split; 0 is any number.
      captions_per_image: captions of each; 0 is any number.
      folds: consecutive equal parts of the split; the recalls are the means over them.
      remedy: what to change where the data are others.
    """

    images: int = 0
    captions_per_image: int = 0
    folds: int = 1
    remedy: str = ""


_TESTALL = "COCO's 5000 test images are data.test_split=testall, its split test has 1000 of them; "
PROTOCOLS = {
    "f30k-1k": Protocol(1000, 5),
    "coco-1k-5fold": Protocol(5000, 5, folds=5, remedy=_TESTALL),
    "coco-5k": Protocol(5000, 5, remedy=_TESTALL),
    "cc152k-1k": Protocol(1000, 1),
    "custom": Protocol(),
}


def parse_protocols(names: str) -> list[str]:
    """The protocols that `evaluation.protocol` names, one or several with commas between.

    Raises:
      ConfigError: a name is none of `PROTOCOLS`.
    """
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in PROTOCOLS:
            raise ConfigError(f"evaluation.protocol: {name!r} is none of {', '.join(PROTOCOLS)}")
    return found


def check_protocols(names: str, images: int, captions_per_image: Counts) -> None:
    """Refuses a test split that is not what one of the protocols is computed on.

    Raises:
      ConfigError: says what the protocol needs, what was found and what to change.
    """
    captions = describe_counts(captions_per_image)
    for name in parse_protocols(names):
        protocol = PROTOCOLS[name]
        needed = protocol.images or images, str(protocol.captions_per_image or captions)
        if needed != (images, captions):
            raise ConfigError(
                f"evaluation.protocol: {name} needs {needed[0]} test images with {needed[1]} "
                f"caption(s) each, found {images} with {captions}; {protocol.remedy}"
                "evaluation.protocol=custom takes any test split"
            )


def describe_counts(captions_per_image: Counts) -> str:
    """Captions of an image, for a person: `5`, or `12 to 62` where the images differ."""
    fewest, most = np.min(captions_per_image), np.max(captions_per_image)
    return f"{fewest}" if fewest == most else f"{fewest} to {most}"


def text_ranks(sims: Float[np.ndarray, "I M"], captions_per_image: Counts) -> Int[np.ndarray, " I"]:
    """Rank (0 = first) of the best placed caption of each image."""
    owner = _owner(sims, captions_per_image)
    captions = np.arange(len(owner))
    starts = np.searchsorted(owner, np.arange(len(sims)))
    own = sims[owner, captions]
    highest = own == np.maximum.reduceat(own, starts)[owner]
    best = np.maximum.reduceat(np.where(highest, captions, -1), starts)  # the last of the highest
    return _ranks(sims, best)


def image_ranks(
    sims: Float[np.ndarray, "I M"], captions_per_image: Counts
) -> Int[np.ndarray, " M"]:
    """Rank (0 = first) of each caption's image."""
    return _ranks(sims.T, _owner(sims, captions_per_image))


def _owner(sims: Float[np.ndarray, "I M"], captions_per_image: Counts) -> Int[np.ndarray, " M"]:
    """The image of each caption."""
    return np.repeat(np.arange(len(sims)), captions_per_image)


def _ranks(sims: Float[np.ndarray, "Q C"], target: Int[np.ndarray, " Q"]) -> Int[np.ndarray, " Q"]:
    """Rank of candidate `target[q]` for query q: how many candidates come before it."""
    ranks = np.empty(len(sims), np.int64)
    candidates = np.arange(sims.shape[1])
    for start in range(0, len(sims), BLOCK):
        block, own = sims[start : start + BLOCK], target[start : start + BLOCK, None]
        score = np.take_along_axis(block, own, axis=1)
        before = (block > score) | ((block == score) & (candidates > own))
        ranks[start : start + BLOCK] = np.count_nonzero(before, axis=1)
    return ranks


def dual_softmax(
    sims: Float[np.ndarray, "I M"], temperature: float, queries: int
) -> Float[np.ndarray, "I M"]:
    """Similarities times their softmax over the queries, for one way of ranking.

    A candidate that many queries are near to counts less for each of them. The ranking of a query
    then depends on the other queries: not a protocol to compare with plain rows.

    Args:
      sims: similarities. A negative one stays as it is, behind all products: a smaller factor would
        move it up. Where none is positive (negated distances), all count from the lowest.
      temperature: they are divided by it in the softmax.
      queries: the axis of the queries, 0 to rank captions and 1 to rank images.

    References:
      Cheng et al., "Improving Video-Text Retrieval by Multi-Stream Corpus Alignment and Dual
      Softmax Loss", 2021, https://arxiv.org/abs/2109.04290
    """
    if sims.max() <= 0:
        sims = sims - sims.min()
    # In float64 because float32 would make many of the softmax zeros, and ties of their products.
    scores = sims.astype(np.float64)
    scores -= scores.max(queries, keepdims=True)
    scores /= temperature
    np.exp(scores, out=scores)
    scores /= scores.sum(queries, keepdims=True)
    scores *= sims
    return np.where(sims > 0, scores, sims)


def recalls(
    sims: Float[np.ndarray, "I M"], captions_per_image: Counts, temperature: float = 0.0
) -> dict[str, float]:
    """R@1/5/10 in percent, median and mean rank (1 = first), both ways, `rsum` (0 to 600), and the
    number of `images` ranked among.

    Args:
      sims: similarities.
      captions_per_image: as `Counts`.
      temperature: of `dual_softmax`, which scores anew before ranking; 0 ranks the similarities.

    Raises:
      ValueError: the matrix does not fit `captions_per_image`, an image has no caption, or there is
        NaN or infinity.
    """
    images, captions = sims.shape
    counts = np.broadcast_to(captions_per_image, images)
    if captions != counts.sum() or counts.min() < 1:
        raise ValueError(
            f"{images} images x {captions} captions: "
            f"expected {describe_counts(captions_per_image)} captions an image"
        )
    if not np.isfinite([sims.min(), sims.max()]).all():  # both pass NaN on
        raise ValueError("the similarity matrix holds NaN or infinity")
    ranks = []
    for queries, ranks_of in enumerate((text_ranks, image_ranks)):
        scores = dual_softmax(sims, temperature, queries) if temperature else sims
        ranks.append(ranks_of(scores, captions_per_image))
    return rank_row(*ranks)


def rank_row(of_texts: Int[np.ndarray, " I"], of_images: Int[np.ndarray, " M"]) -> dict[str, float]:
    """What `recalls` returns, from the ranks that `text_ranks` and `image_ranks` do."""
    row: dict[str, float] = {"images": len(of_texts)}
    for way, ranks in zip(WAYS, (of_texts, of_images), strict=True):
        for k in RECALL_AT:
            row[f"{way}_r{k}"] = 100.0 * float(np.mean(ranks < k))
        row[f"{way}_median"] = float(np.floor(np.median(ranks)) + 1)
        row[f"{way}_mean"] = float(np.mean(ranks) + 1)
    row["rsum"] = sum(row[f"{way}_r{k}"] for way in WAYS for k in RECALL_AT)
    return row


def fold_recalls(
    sims: Float[np.ndarray, "I M"], captions_per_image: Counts, folds: int, temperature: float = 0.0
) -> dict[str, float]:
    """Means of `recalls` over consecutive equal parts of the gallery (COCO 1K: 5 folds of 5K).

    Raises:
      ValueError: the images do not divide into `folds` parts.
    """
    images = sims.shape[0]
    if images % folds:
        raise ValueError(f"{images} images do not divide into {folds} folds")
    counts = np.broadcast_to(captions_per_image, images)
    starts = np.concatenate([[0], np.cumsum(counts)])  # columns
    rows = []
    for first in range(0, images, images // folds):
        last = first + images // folds
        block = sims[first:last, starts[first] : starts[last]]
        rows.append(recalls(block, counts[first:last], temperature))
    return mean_row(rows)


def mean_row(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The means of rows with the same keys."""
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def recall_rows(
    sims: Float[np.ndarray, "I M"],
    captions_per_image: Counts,
    protocols: str,
    temperature: float = 0.0,
) -> dict[str, dict[str, Any]]:
    """Rows of the result table by protocol: the means of `recalls` over its folds.

    With a temperature, a second row of each protocol, so named, is that of `dual_softmax` among the
    queries of a fold.

    Args:
      sims: of the whole test split.
      captions_per_image: as `Counts`.
      protocols: as `parse_protocols` takes them.

    Raises:
      ConfigError: as `check_protocols`.
      ValueError: as `recalls`.
    """
    check_protocols(protocols, len(sims), captions_per_image)
    rows = {}
    for name in parse_protocols(protocols):
        folds = PROTOCOLS[name].folds
        rows[name] = fold_recalls(sims, captions_per_image, folds)
        if temperature:
            row = fold_recalls(sims, captions_per_image, folds, temperature)
            rows[f"{name}, dual softmax {temperature:g}"] = row
    return rows


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The field's table, a line per named row: recalls, median and mean rank both ways, rSum.

    Where a row is of two stages, what its proposer lost (percent of the queries) follows.
    """
    keys = {**{f"r{k}": f"R@{k}" for k in RECALL_AT}, "median": "MedR", "mean": "MeanR"}
    lost = [f"{way}_lost" for way in WAYS]
    width = max(len(name) for name in rows) + 2
    head = "".join(title.rjust(7) for title in keys.values())
    titles = [title.center(len(head)) for title in ("image to text", "text to image")]
    lines = [
        " " * (width + 6) + "".join(titles).rstrip(),
        f"{'':<{width}}images{head}{head}    rSum",
    ]
    if any(lost[0] in row for row in rows.values()):
        lines[1] += "".join(f"{f'{way} lost':>10}" for way in WAYS)
    for name, row in rows.items():
        values = "".join(f"{row[f'{way}_{key}']:7.1f}" for way in WAYS for key in keys)
        values += f"{row['rsum']:8.1f}" + "".join(f"{row[key]:10.1f}" for key in lost if key in row)
        lines.append(f"{name:<{width}}{row['images']:6.0f}{values}")
    return "\n".join(lines)
