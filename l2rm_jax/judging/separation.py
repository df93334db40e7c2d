"""AUROC of scores of pairs against scores of known mismatches.

Scores are counted in bins, so only a few hundred counts are stored for millions of scores.
"""

import numpy as np
from jaxtyping import Float

from l2rm_jax.errors import DataError

BINS = 256


def separation(scores: Float[np.ndarray, " n"], negatives: Float[np.ndarray, " m"]) -> float:
    """Return the share of (score, negative) pairs in which the score is higher (AUROC).

    Scores in one of `BINS` bins of equal width, which cover all of them, count as equal.

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
    above, below = (
        np.bincount(np.searchsorted(edges, each, "right"), minlength=BINS).astype(float)
        for each in (scores, negatives)
    )
    lower = np.cumsum(below) - below / 2
    return float(above @ lower / (above.sum() * below.sum()))
