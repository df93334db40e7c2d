"""The split of L2RM: which pairs of an epoch count as matched (Sec. 4.1)."""

import numpy as np

from l2rm_jax import mixture
from l2rm_jax.methods.base import EpochPlan

THRESHOLD = 0.5  # a pair whose probability of being mismatched exceeds it is called mismatched


def split_pairs(losses: np.ndarray, truth: np.ndarray) -> EpochPlan:
    """Matched and mismatched streams from the per-pair losses `[M]`.

    Args:
      losses: per-pair losses of the current model.
      truth: False for the pairs known to be mismatched; only reported against. Where none is
        known to be, nothing is known, and nothing is reported.

    Returns:
      Streams "matched" and "mismatched" (an empty one is left out) and the split's quality.
    """
    fitted = mixture.fit(losses)
    probability = fitted.mismatch(losses)
    called_matched = probability <= THRESHOLD
    streams = {
        "matched": np.flatnonzero(called_matched),
        "mismatched": np.flatnonzero(~called_matched),
    }
    report = {name: len(indices) for name, indices in streams.items()}
    if not truth.all():
        report |= quality(called_matched, probability, truth)
    warnings = [
        f"no pair was called {name}: the epoch trains on the other kind alone"
        for name, indices in streams.items()
        if not len(indices)
    ]
    if not fitted.consistent:
        warnings.append(
            "the lowest losses of the split are likelier under the component with the higher "
            "mean: which pairs are mismatched is doubtful in this epoch"
        )
    return EpochPlan(
        streams={name: indices for name, indices in streams.items() if len(indices)},
        report=report,
        warnings=tuple(warnings),
    )


def quality(called_matched: np.ndarray, probability: np.ndarray, truth: np.ndarray) -> dict:
    """Accuracy of the split, precision and recall of its matched set, and the AUROC of the
    mismatch probability; what has nothing to be a share of is left out."""
    right = called_matched & truth
    report = {"split_accuracy": float(np.mean(called_matched == truth))}
    if called_matched.any():
        report["split_precision"] = float(right.sum() / called_matched.sum())
    if truth.any():
        report["split_recall"] = float(right.sum() / truth.sum())
        report["split_auroc"] = auroc(probability, ~truth)
    return report


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Chance that a positive outranks a negative; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse]
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    above = ranks[positive].sum() - n_positive * (n_positive + 1) / 2
    return float(above / (n_positive * n_negative))
