"""Recall from a similarity matrix: NumPy only, the protocol of the field."""

import numpy as np
from jaxtyping import Float, Int

RECALL_AT = (1, 5, 10)


def text_ranks(sims: Float[np.ndarray, "I M"], captions_per_image: int) -> Int[np.ndarray, " I"]:
    """Rank (0 = first) of the best placed caption of each image; caption k is of image
    `k // captions_per_image`."""
    images = sims.shape[0]
    best = np.full(images, sims.shape[1])
    for offset in range(captions_per_image):
        own = np.arange(images) * captions_per_image + offset
        best = np.minimum(best, _ranks(sims, own))
    return best


def image_ranks(sims: Float[np.ndarray, "I M"], captions_per_image: int) -> Int[np.ndarray, " M"]:
    """Rank (0 = first) of each caption's image."""
    return _ranks(sims.T, np.arange(sims.shape[1]) // captions_per_image)


def _ranks(sims: Float[np.ndarray, "Q C"], target: Int[np.ndarray, " Q"]) -> np.ndarray:
    """Rank of candidate `target[q]` for query q.

    A tie goes to the later candidate, as in the reference's reversed ascending sort.
    """
    ranks = np.empty(len(sims), np.int64)
    later = np.arange(sims.shape[1])
    for query, (row, own) in enumerate(zip(sims, target, strict=True)):
        ranks[query] = np.sum(row > row[own]) + np.sum((row == row[own]) & (later > own))
    return ranks


def recalls(sims: Float[np.ndarray, "I M"], captions_per_image: int) -> dict[str, float]:
    """R@1/5/10 in percent, median and mean rank (1 = first), both ways, and their sum `rsum`.

    Raises:
      ValueError: the matrix does not fit `captions_per_image`, or holds NaN or infinity.
    """
    images, captions = sims.shape
    if captions != images * captions_per_image:
        raise ValueError(
            f"{images} images x {captions} captions: "
            f"expected {captions_per_image} captions an image"
        )
    if not np.isfinite(sims).all():
        raise ValueError("the similarity matrix holds NaN or infinity")
    row: dict[str, float] = {}
    directions = {"i2t": text_ranks, "t2i": image_ranks}
    for name, ranks_of in directions.items():
        ranks = ranks_of(sims, captions_per_image)
        for k in RECALL_AT:
            row[f"{name}_r{k}"] = 100.0 * float(np.mean(ranks < k))
        row[f"{name}_median"] = float(np.floor(np.median(ranks)) + 1)
        row[f"{name}_mean"] = float(np.mean(ranks) + 1)
    row["rsum"] = sum(row[f"{name}_r{k}"] for name in directions for k in RECALL_AT)
    return row


def fold_recalls(
    sims: Float[np.ndarray, "I M"], captions_per_image: int, folds: int
) -> dict[str, float]:
    """Means of `recalls` over consecutive equal parts of the gallery (COCO 1K: 5 folds of 5K).

    Raises:
      ValueError: the images do not divide into `folds` parts.
    """
    images = sims.shape[0]
    if images % folds:
        raise ValueError(f"{images} images do not divide into {folds} folds")
    size = images // folds
    rows = []
    for fold in range(folds):
        rows_ = slice(fold * size, (fold + 1) * size)
        columns = slice(rows_.start * captions_per_image, rows_.stop * captions_per_image)
        rows.append(recalls(sims[rows_, columns], captions_per_image))
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


def recall_rows(
    sims: Float[np.ndarray, "I M"], captions_per_image: int, folds: int = 1
) -> dict[str, dict[str, float]]:
    """Named rows of the recall table: the mean over the folds first, where there are several."""
    images = sims.shape[0]
    rows = {}
    if folds > 1:
        name = f"{folds} x {images // folds} images"
        rows[name] = fold_recalls(sims, captions_per_image, folds)
    rows[f"{images} images"] = recalls(sims, captions_per_image)
    return rows


def table(rows: dict[str, dict[str, float]]) -> str:
    """The field's table, a line per named row."""
    columns = [f"{name}_r{k}" for name in ("i2t", "t2i") for k in RECALL_AT]
    width = max(len(name) for name in rows) + 2
    head = "".join(f"R@{k}".rjust(7) for k in RECALL_AT)
    lines = [
        " " * width + "image to text".center(21) + "text to image".center(21),
        " " * width + head + head + "rSum".rjust(8),
    ]
    for name, row in rows.items():
        values = "".join(f"{row[column]:7.1f}" for column in columns)
        lines.append(f"{name:<{width}}{values}{row['rsum']:8.1f}")
    return "\n".join(lines)
