"""Draw splits by the contents of the images, for data that come as a single split."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int, UInt64

from l2rm_jax.data.pairs import Pairs, taken
from l2rm_jax.errors import DataError

FEWEST = 2  # distinct images of a split


def draw_splits(
    keys: UInt64[np.ndarray, " images"], shares: Sequence[float], name: str
) -> Int[np.ndarray, " images"]:
    """Return the split of each image: 1 for the first share, and so on, 0 for the other images.

    Equal images are in one split. The split of an image depends on its content, not on its row.

    Args:
      keys: hash of each image's content (`content_hashes.hash_images`).
      shares: share of the distinct images in each split but the first, each at least 2 images.
      name: name of the data, for the error message.

    Raises:
      DataError: there are too few distinct images for 2 per split.
    """
    distinct = np.unique(keys)
    ends = np.cumsum([max(FEWEST, round(share * len(distinct))) for share in shares])
    if len(distinct) - ends[-1] < FEWEST:
        raise DataError(
            f"{name}: found {len(distinct)} distinct images, expected at least "
            f"{FEWEST * (len(shares) + 1)}, and at least {FEWEST} for training beside "
            f"{' and '.join(f'{share:g}' for share in shares)} of them for the other splits"
        )
    place = np.searchsorted(distinct, keys)
    split = np.searchsorted(ends, place, side="right") + 1
    return np.where(split > len(shares), 0, split)


def rows_of_images(pairs: Pairs, images: Int[np.ndarray, " n"]) -> Int[np.ndarray, " taken"]:
    """Return the rows of the pairs of some images, sorted by image."""
    rows = np.flatnonzero(np.isin(pairs.image_of, images))
    return rows[np.argsort(pairs.image_of[rows], kind="stable")]


def take_images(pairs: Pairs, images: Int[np.ndarray, " n"], split: str) -> Pairs:
    """Return some images, given by ascending rows, with their captions, sorted by image.

    Args:
      pairs: the pairs.
      images: rows of the images, ascending.
      split: name of the new split.
    """
    chosen = pairs.take(rows_of_images(pairs, images))
    return replace(
        chosen,
        images=pairs.images.take(images),
        image_of=np.searchsorted(images, chosen.image_of),
        ids=taken(pairs.ids, images),
        pictures=None,
        split=split,
    )
