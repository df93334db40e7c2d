"""Area under the ROC curve."""

import numpy as np


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a random positive has a higher score than a random negative.

    Ties count one half. The result is undefined unless both classes occur.

    Args:
      scores: `[n]`.
      positive: True for the positives, `[n]`.
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    above = ranks[positive].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * n_negative))
