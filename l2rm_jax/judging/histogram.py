"""Scores counted in bins: millions of them take the room and the time of a few hundred."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.errors import DataError

BINS = 256


class Histogram(NamedTuple):
    """Bins of equal width that cover all scores."""

    edges: Float[np.ndarray, " edges"]

    @classmethod
    def over(cls, *scores: np.ndarray) -> "Histogram":
        """Return bins that cover several arrays of scores.

        Raises:
          DataError: an array is empty, or a score is not finite.
        """
        for each in scores:
            if not each.size or not np.isfinite(each).all():
                raise DataError(
                    f"judging: found {np.sum(~np.isfinite(each))} scores that are not finite "
                    f"among {each.size}, expected at least one score and only finite ones"
                )
        low, high = (float(f([f(each) for each in scores])) for f in (np.min, np.max))
        return cls(np.linspace(low, max(high, low + 1e-6 * max(1, abs(low))), BINS + 1))

    @property
    def centres(self) -> Float[np.ndarray, " bins"]:
        """Middle of each bin."""
        return (self.edges[1:] + self.edges[:-1]) / 2

    def bins(self, scores: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Bin of each score."""
        return np.clip(np.searchsorted(self.edges, scores, "right") - 1, 0, BINS - 1)

    def count(
        self, scores: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"] | None = None
    ) -> Float[np.ndarray, " bins"]:
        """Number (or sum of weights) of the scores in each bin."""
        return np.bincount(self.bins(scores), weights, BINS).astype(np.float64)


def separation(
    scores: Float[np.ndarray, " n"],
    negatives: Float[np.ndarray, " m"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> float:
    """Return the share of (score, negative) pairs in which the score is higher (AUROC).

    Scores in one bin count as equal. With weights, a score counts that many times.

    Raises:
      DataError: as `Histogram.over`.
    """
    histogram = Histogram.over(scores, negatives)
    above, below = histogram.count(scores, weights), histogram.count(negatives)
    lower = np.cumsum(below) - below / 2
    return float(above @ lower / (above.sum() * below.sum()))
