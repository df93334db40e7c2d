"""What is said of each pair, beyond its probability."""

import numpy as np
from jaxtyping import Int

from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.judging.groups import Groups
from l2rm_jax.judging.judgement import (
    ALTERNATE,
    DOUBTFUL,
    FOREIGN_SET,
    MATCHED,
    UNINFORMATIVE,
)
from l2rm_jax.judging.posterior import Posterior
from l2rm_jax.judging.scores import Evidence

_UNINFORMATIVE = 0.25  # of the median contrast: a caption with less fits all images alike


def kinds(
    evidence: Evidence,
    found: Posterior,
    groups: Groups,
    pair_image: Int[np.ndarray, " pairs"],
) -> Int[np.ndarray, " pairs"]:
    """Return the kind of each pair, but for shifted rows.

    A doubted pair is an alternate if another pair of its group, whose image is not its own, has the
    same text and is not doubted: what fits that image nearly fits this one.

    Args:
      evidence: on the pairs.
      found: what follows from it.
      groups: what belongs together.
      pair_image: row of the image that each caption is stored with.
    """
    doubted = found.posterior > SUSPICIOUS
    kind = np.where(doubted, DOUBTFUL, MATCHED)
    kind[doubted & (found.posterior_set > found.posterior_caption)] = FOREIGN_SET
    contrast = evidence.contrast
    kind[doubted & (contrast < _UNINFORMATIVE * np.median(contrast))] = UNINFORMATIVE
    said = groups.of_image[pair_image] * len(pair_image) + groups.text
    kind[doubted & np.isin(said, said[~doubted])] = ALTERNATE
    return kind


def conflicts(
    evidence: Evidence,
    kind: Int[np.ndarray, " pairs"],
    pair_image: Int[np.ndarray, " pairs"],
) -> Int[np.ndarray, "n 2"]:
    """Return captions that contradict another one of their image, each with that one.

    A doubtful caption contradicts the others stored with its image if it agrees with them no better
    than the median random caption does. It is listed with the kept one that fits the image best.

    Args:
      evidence: on the pairs.
      kind: of each pair.
      pair_image: row of the image that each caption is stored with.
    """
    agreement = evidence.stored.neighbours.agreement[:, 0]
    null = np.median(evidence.wrong.scores.neighbours.agreement[..., 0])
    by_fit = np.lexsort((-evidence.stored.information, pair_image))
    kept = by_fit[kind[by_fit] == MATCHED]
    images, first = np.unique(pair_image[kept], return_index=True)
    rows = np.flatnonzero((kind == DOUBTFUL) & (agreement <= null))
    rows = rows[np.isin(pair_image[rows], images)]
    best = kept[first[np.searchsorted(images, pair_image[rows])]]
    return np.stack([rows, best], axis=1)
