"""Which pairs a page holds: the most doubted ones, those of the review, and what goes with them."""

from dataclasses import replace

import numpy as np
from jaxtyping import Int

from l2rm_jax.judging import Judgement

LISTED = 100_000  # pairs of a page, the most doubted ones; a browser reads some ten times as many


def listed(judgement: Judgement, review: Int[np.ndarray, " n"], most: int) -> Judgement:
    """Return the judgement with the most doubted pairs and those of the review in its order."""
    chosen = np.zeros(len(judgement), bool)
    chosen[judgement.order[:most]] = True
    chosen[review] = True
    return replace(judgement, order=judgement.order[chosen[judgement.order]])


def rows_needed(judgement: Judgement) -> Int[np.ndarray, " rows"]:
    """Rows of which the page shows something, ascending.

    They are the pairs in the order, all captions of their images, the proposed captions, and the
    first caption of each of the nearest images, which stands for a picture that cannot be shown.
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
    """Return what a page shows of some pairs and images; their numbers count within these.

    Args:
      judgement: of all pairs.
      rows: the pairs, ascending; those of the order are among them.
      images: the images of these pairs, ascending.
    """

    def place(numbers: np.ndarray, among: np.ndarray) -> np.ndarray:
        """Places of numbers; -1 for those that are not there."""
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
