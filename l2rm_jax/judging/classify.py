"""Classify pairs by kind of mismatch, and find captions that contradict each other."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.judging.groups import Groups
from l2rm_jax.judging.judgement import (
    KEPT,
    MATCHED,
    NEAR_DUPLICATE,
    SUSPECT,
    SWAPPED_CAPTION,
    SWAPPED_SET,
    UNINFORMATIVE,
)
from l2rm_jax.judging.scores import Evidence

_UNINFORMATIVE = 0.25  # of the median contrast: a caption below it fits all images equally well


def kinds(
    posterior: Float[np.ndarray, " pairs"],
    is_set: Bool[np.ndarray, " pairs"],
    contrast: Float[np.ndarray, " pairs"],
    image_of: Int[np.ndarray, " pairs"],
) -> Int[np.ndarray, " pairs"]:
    """Return the kind of each pair by its scores, without regard to groups and texts.

    Whether a caption was swapped alone or with the others of its image is told only where there are
    others.

    Args:
      posterior: probability that the pair is mismatched.
      is_set: whether all captions of the image are suspicious together.
      contrast: how differently the images of the fold fit the caption.
      image_of: row of the image that each caption is stored with.
    """
    suspicious = posterior > SUSPICIOUS
    kind = np.where(suspicious, SWAPPED_CAPTION, MATCHED)
    kind[suspicious & is_set] = SWAPPED_SET
    kind[suspicious & (np.bincount(image_of)[image_of] == 1)] = SUSPECT
    kind[suspicious & (contrast < _UNINFORMATIVE * np.median(contrast))] = UNINFORMATIVE
    return kind


def with_groups(
    kind: Int[np.ndarray, " pairs"],
    information: Float[np.ndarray, " pairs"],
    groups: Groups,
    image_of: Int[np.ndarray, " pairs"],
    texts: Sequence[str] | None,
) -> Int[np.ndarray, " pairs"]:
    """Return the kinds after a look at near duplicates and texts.

    A suspicious pair is a near duplicate if another image of its group has the same caption in a
    pair that is not suspicious: a caption that fits that image nearly fits this one. A caption
    without text is uninformative, and so is a text stored with many images, most of which it fits
    no better than random ones.

    Args:
      kind: by `kinds`.
      information: of the pairs.
      groups: groups of near duplicates.
      image_of: row of the image that each caption is stored with.
      texts: the captions as texts; None: only vectors.
    """
    kind, suspicious = kind.copy(), ~np.isin(kind, KEPT)
    said = groups.of_image[image_of] * len(image_of) + groups.text
    kind[suspicious & np.isin(said, said[~suspicious])] = NEAR_DUPLICATE
    kind[_is_boilerplate(information, groups)] = UNINFORMATIVE
    if texts is not None:
        kind[[row for row, text in enumerate(texts) if not text.strip()]] = UNINFORMATIVE
    return kind


def _is_boilerplate(
    information: Float[np.ndarray, " pairs"], groups: Groups
) -> Bool[np.ndarray, " pairs"]:
    """Return whether each caption is a text of many images that fits most of them at random."""
    pairs = np.bincount(groups.text)
    at_random = np.bincount(groups.text, information < 0)
    is_often = np.zeros(len(pairs), bool)
    is_often[groups.text[[each.row for each in groups.repeated]]] = True
    return (is_often & (2 * at_random > pairs))[groups.text]


def conflicts(
    evidence: Evidence,
    kind: Int[np.ndarray, " pairs"],
    image_of: Int[np.ndarray, " pairs"],
) -> Int[np.ndarray, "n 2"]:
    """Return the captions that contradict another caption of their image, each with the other.

    A swapped caption contradicts its siblings if it agrees with them no better than the median
    random caption does. It is listed with the matched sibling that fits the image best.

    Args:
      evidence: scores of the pairs.
      kind: kind of each pair.
      image_of: row of the image that each caption is stored with.
    """
    agreement = evidence.stored.neighbours.agreement[:, 0]
    null = np.median(evidence.wrong.scores.neighbours.agreement[..., 0])
    by_fit = np.lexsort((-evidence.stored.information, image_of))
    kept = by_fit[kind[by_fit] == MATCHED]
    images, first = np.unique(image_of[kept], return_index=True)
    rows = np.flatnonzero((kind == SWAPPED_CAPTION) & (agreement <= null))
    rows = rows[np.isin(image_of[rows], images)]
    best = kept[first[np.searchsorted(images, image_of[rows])]]
    return np.stack([rows, best], axis=1)
