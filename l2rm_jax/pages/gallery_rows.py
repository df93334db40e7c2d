"""Select the rows of a page: the most suspicious pairs, the review, and rows shown with them."""

from dataclasses import replace

import numpy as np
from jaxtyping import Int

from l2rm_jax.judging import Judgement

LISTED = 100_000  # most suspicious pairs in a page; browsers can read about ten times as many


def listed(judgement: Judgement, review: Int[np.ndarray, " n"], most: int) -> Judgement:
    """Return the judgement with only the most suspicious pairs and the review in its order."""
    chosen = np.zeros(len(judgement), bool)
    chosen[judgement.order[:most]] = True
    chosen[review] = True
    return replace(judgement, order=judgement.order[chosen[judgement.order]])


def rows_needed(judgement: Judgement) -> Int[np.ndarray, " rows"]:
    """Return the rows of which the page shows anything, ascending.

    They are the pairs in the order, all captions of their images, the proposed captions, and the
    first caption of each of the nearest images, shown if a picture cannot be shown.
    """
    image, order = judgement.image, judgement.order
    is_shown = np.zeros(int(image.max()) + 1, bool)
    is_shown[image[order]] = True
    needed = is_shown[image]
    proposals = judgement.proposal[order].ravel()
    needed[proposals[proposals >= 0]] = True
    if len(judgement.near):
        stored, first = np.unique(image, return_index=True)
        near = np.unique(judgement.near[np.flatnonzero(is_shown)])
        needed[first[np.isin(stored, near)]] = True
    return np.flatnonzero(needed)


def taken(
    judgement: Judgement, rows: Int[np.ndarray, " rows"], images: Int[np.ndarray, " images"]
) -> Judgement:
    """Restrict the judgement to the given pairs and images, renumbered within these.

    Args:
      judgement: judgement of all pairs.
      rows: the pairs, ascending; they include the pairs of the order.
      images: the images of these pairs, ascending.
    """

    def place(numbers: np.ndarray, among: np.ndarray) -> np.ndarray:
        """Return the places of numbers; -1 if missing."""
        at = np.searchsorted(among, numbers).clip(max=len(among) - 1)
        return np.where(among[at] == numbers, at, -1)

    columns = ("posterior", "probability", "none_fits", "information", "kind")
    return replace(
        judgement,
        **{name: getattr(judgement, name)[rows] for name in columns},
        image=place(judgement.image[rows], images),
        proposal=place(judgement.proposal[rows], rows),
        order=place(judgement.order, rows),
        near=place(judgement.near[images], images) if len(judgement.near) else judgement.near,
    )
