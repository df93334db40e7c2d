"""The pairs of each fold, a sample that stands for them, and the known mismatches."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from l2rm_jax.crossfit.information import draw_negatives

REFERENCES = 1000  # images and captions of a fold that stand for all of it, at most
NEGATIVES = 10  # known mismatches of a caption
_ENOUGH = 1_000_000  # known mismatches: with more pairs than a tenth of it, each has fewer


class FoldPairs(NamedTuple):
    """The pairs of a fold, image by image, and the sample that stands for them.

    Attributes:
      pairs: [n] rows of the captions.
      images: [m] rows of the images, ascending.
      position: [n] place of the image of each pair in `images`.
      references: [R] places of the sample in `images`, ascending.
      captions: [C] places of the sample in `pairs`, ascending.
      replaced: [R] place in `pairs` of the caption of each reference that a wrong one replaces.
      wrong: [m, k] places in `references` of the wrong images of each image.
    """

    pairs: Int[np.ndarray, " n"]
    images: Int[np.ndarray, " m"]
    position: Int[np.ndarray, " n"]
    references: Int[np.ndarray, " R"]
    captions: Int[np.ndarray, " C"]
    replaced: Int[np.ndarray, " R"]
    wrong: Int[np.ndarray, "m k"]


def fold_pairs(
    pair_image: Int[np.ndarray, " pairs"],
    image_fold: Int[np.ndarray, " images"],
    image_group: Int[np.ndarray, " images"],
    seed: int,
) -> dict[int, FoldPairs]:
    """Return the pairs of each fold, with samples of equal size, so that programs are shared.

    Raises:
      DataError: the images of a sample are of one group.
    """
    count = int(np.clip(_ENOUGH // len(pair_image), 1, NEGATIVES))
    pair_fold = image_fold[pair_image]
    by_image = np.argsort(pair_image, kind="stable")
    found = {}
    for fold in np.unique(pair_fold):
        pairs = by_image[pair_fold[by_image] == fold]
        found[int(fold)] = pairs, *np.unique(pair_image[pairs], return_inverse=True)
    some_images = min(REFERENCES, *(len(images) for _, images, _ in found.values()))
    some_pairs = min(REFERENCES, *(len(pairs) for pairs, _, _ in found.values()))
    folds = {}
    for fold, (pairs, images, position) in found.items():
        rng = np.random.default_rng([seed, fold])
        references = np.sort(rng.choice(len(images), some_images, replace=False))
        captions = np.sort(rng.choice(len(pairs), some_pairs, replace=False))
        counts = np.bincount(position)
        first = np.cumsum(counts) - counts
        replaced = first[references] + rng.integers(0, counts[references])
        groups = image_group[images]
        wrong = draw_negatives(groups, groups[references], count, rng)
        folds[fold] = FoldPairs(pairs, images, position, references, captions, replaced, wrong)
    return folds
