"""AUROC: how well a score tells two kinds apart."""

import numpy as np
from jaxtyping import Bool, Float, Int

from l2rm_jax.errors import DataError

BINS = 256


def auroc(scores: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"]) -> float:
    """Probability that a random positive has a higher score than a random negative.

    Ties count one half. The result is undefined unless both kinds occur.

    Args:
      scores: any numbers.
      positive: True for the positives.
    """
    levels, level = np.unique(scores, return_inverse=True)
    return _share_higher(
        *(np.bincount(level[kind], minlength=len(levels)) for kind in (positive, ~positive))
    )


def binned_auroc(scores: Float[np.ndarray, " n"], negatives: Float[np.ndarray, " m"]) -> float:
    """Return the share of (score, negative) pairs in which the score is higher.

    Scores in one of `BINS` bins of equal width, which cover all of them, count as equal: of
    millions of scores, only a few hundred counts are kept.

    Args:
      scores: at least one.
      negatives: scores of known mismatches, at least one.

    Returns:
      The share, in [0, 1].

    Raises:
      DataError: an array is empty, or a score is not finite.
    """
    for each in (scores, negatives):
        if not each.size or not np.isfinite(each).all():
            raise DataError(
                f"judging: found {np.sum(~np.isfinite(each))} scores that are not finite "
                f"among {each.size}, expected at least one score and only finite ones"
            )
    low = float(min(scores.min(), negatives.min()))
    high = float(max(scores.max(), negatives.max()))
    edges = np.linspace(low, max(high, low + 1e-6 * max(1, abs(low))), BINS + 1)[1:-1]
    return _share_higher(
        *(
            np.bincount(np.searchsorted(edges, each, "right"), minlength=BINS)
            for each in (scores, negatives)
        )
    )


def _share_higher(
    positives: Int[np.ndarray, " levels"], negatives: Int[np.ndarray, " levels"]
) -> float:
    """Share of (positive, negative) pairs with the positive in a higher level; ties count half.

    Args:
      positives: number of positives in each level.
      negatives: number of negatives in each level.
    """
    lower = np.cumsum(negatives) - negatives / 2
    return float(positives @ lower / (positives.sum() * negatives.sum()))
