"""Find placeholder pictures ("image not available"): many unrelated captions share them.

No picture fits all these captions, so the pairs are not judged. Left in, they would merge many
images into one group and widen the confidence interval.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from l2rm_jax.judging.content_keys import first_of_equals
from l2rm_jax.linear.rows import BLOCK, Rows, unit_rows

_COPIES = 5  # a placeholder has at least this many images with the same picture,
_CAPTIONS = 10  # or at least this many captions,
_TIMES = 3  # and in either case at least this multiple of the median number of all pictures
_ALIKE = 0.5  # length of the mean of unit vectors: longer for captions of one real picture


class Placeholder(NamedTuple):
    """A picture stored with many unrelated captions.

    Attributes:
      row: row of the first image with this picture.
      images: number of images with this picture.
      pairs: number of captions stored with these images.
    """

    row: int
    images: int
    pairs: int


def find_placeholders(
    image_keys: UInt64[np.ndarray, " images"],
    captions: Rows,
    image_of: Int[np.ndarray, " pairs"],
) -> list[Placeholder]:
    """Find the placeholders, sorted by decreasing number of captions.

    Captions of one real picture are similar: the mean of their unit vectors, centred by the mean of
    all captions, is longer than 0.5. Captions of many pictures have a mean close to zero.

    Args:
      image_keys: equal for images with the same picture.
      captions: vectors of the captions.
      image_of: row of the image that each caption is stored with.
    """
    first = first_of_equals(image_keys)
    picture = first[image_of]
    copies = np.bincount(first[np.unique(image_of)], minlength=len(first))
    captions_of = np.bincount(picture, minlength=len(first))
    many_copies, many_captions = (
        max(fewest, _TIMES * np.median(numbers[numbers > 0]))
        for fewest, numbers in ((_COPIES, copies), (_CAPTIONS, captions_of))
    )
    found = np.flatnonzero((copies >= many_copies) | (captions_of >= many_captions))
    if not len(found):
        return []
    centre = unit_rows(captions[_some(np.arange(len(picture)))]).mean(axis=0)
    result = []
    for row in found:
        own = np.flatnonzero(picture == row)
        if _common_length(captions, own, image_of, centre) < _ALIKE:
            result.append(Placeholder(int(row), int(copies[row]), len(own)))
    return sorted(result, key=lambda each: -each.pairs)


def _some(rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    """Choose at most `BLOCK` rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(BLOCK, len(rows))).astype(int)]


def _common_length(
    captions: Rows, rows: Int[np.ndarray, " n"], image_of: np.ndarray, centre: np.ndarray
) -> float:
    """Return the length of the mean direction of captions; siblings count as one caption."""
    rows = _some(rows)
    vectors = unit_rows(unit_rows(captions[rows]) - centre)
    images, position = np.unique(image_of[rows], return_inverse=True)
    if len(images) > 1:
        sums = np.zeros((len(images), vectors.shape[1]), np.float32)
        np.add.at(sums, position, vectors)
        vectors = unit_rows(sums)
    return float(np.linalg.norm(vectors.mean(axis=0)))
