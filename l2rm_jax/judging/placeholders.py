"""Pictures that stand with many captions which have nothing in common: "image not available".

No picture fits them all, so there is nothing to judge. Among the others they would join many images
to one group, and widen the interval of the rate to no use.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from l2rm_jax.judging.pairs import first_of_equals
from l2rm_jax.linear.rows import BLOCK, Rows, unit_rows

_COPIES = 5  # images with the same picture from which on it may be a placeholder
_CAPTIONS = 10  # captions of a single image from which on it may be one,
_TIMES = 3  # if they are so many times those of the median image
_ALIKE = 0.5  # length of the mean of unit vectors: captions of one picture have more


class Placeholder(NamedTuple):
    """A picture that stands with many captions which have nothing in common.

    Attributes:
      row: the first of its images.
      images: how many images it is.
      pairs: how many captions are stored with them.
    """

    row: int
    images: int
    pairs: int


def find_placeholders(
    image_keys: UInt64[np.ndarray, " images"],
    captions: Rows,
    pair_image: Int[np.ndarray, " pairs"],
) -> list[Placeholder]:
    """Find the placeholders, the one with most captions first.

    Captions of one picture say similar things, so the mean of their unit vectors, about the mean of
    all captions, is longer than half of one. That of captions of many pictures is all but zero.

    Args:
      image_keys: equal for images with the same picture.
      captions: vectors of the captions.
      pair_image: row of the image that each caption is stored with.
    """
    first = first_of_equals(image_keys)
    stored, counts = np.unique(pair_image, return_counts=True)
    copies = np.bincount(first[stored], minlength=len(first))
    picture = first[pair_image]
    captions_of = np.bincount(picture, minlength=len(first))
    many = max(_CAPTIONS, _TIMES * np.median(counts))
    found = np.flatnonzero((copies >= _COPIES) | (captions_of >= many))
    if not len(found):
        return []
    centre = unit_rows(captions[_some(np.arange(len(picture)))]).mean(axis=0)
    result = []
    for row in found:
        own = np.flatnonzero(picture == row)
        if _common_length(captions, own, pair_image, centre) < _ALIKE:
            result.append(Placeholder(int(row), int(copies[row]), len(own)))
    return sorted(result, key=lambda each: -each.pairs)


def _some(rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    """At most `BLOCK` rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(BLOCK, len(rows))).astype(int)]


def _common_length(
    captions: Rows, rows: Int[np.ndarray, " n"], pair_image: np.ndarray, centre: np.ndarray
) -> float:
    """Length of the mean direction of some captions; those stored with one image count once."""
    rows = _some(rows)
    vectors = unit_rows(unit_rows(captions[rows]) - centre)
    images, position = np.unique(pair_image[rows], return_inverse=True)
    if len(images) > 1:
        sums = np.zeros((len(images), vectors.shape[1]), np.float32)
        np.add.at(sums, position, vectors)
        vectors = unit_rows(sums)
    return float(np.linalg.norm(vectors.mean(axis=0)))
