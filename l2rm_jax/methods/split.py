"""The split of L2RM: which pairs of an epoch count as matched (Sec. 4.1)."""

import numpy as np

from l2rm_jax import mixture
from l2rm_jax.methods.base import EpochPlan

THRESHOLD = 0.5  # a pair whose probability of being mismatched exceeds it is called mismatched
# A side of the split below this share is next to nothing: no protocol of the field is that uneven.
SMALLEST_SIDE = 0.02
# Two components of one hump come out at 0.1 to 0.5 standard deviations, of two humps above 0.5.
SEPARATION = 0.5


def split_pairs(losses: np.ndarray, truth: np.ndarray) -> EpochPlan:
    """Matched and mismatched streams from the per-pair losses `[M]`.

    Args:
      losses: per-pair losses of the current model.
      truth: False for the pairs known to be mismatched; only reported against. Where none is
        known to be, nothing is known, and nothing is reported.

    Returns:
      Streams "matched" and "mismatched" (an empty one is left out), how far the mixture's
      components are apart, the split's quality, and what makes it doubtful.
    """
    fitted = mixture.fit(losses)
    probability = fitted.posterior(losses)
    called_matched = probability <= THRESHOLD
    streams = {
        "matched": np.flatnonzero(called_matched),
        "mismatched": np.flatnonzero(~called_matched),
    }
    report = {name: len(indices) for name, indices in streams.items()}
    report["split_separation"] = fitted.separation
    if not truth.all():
        report |= split_quality(called_matched, probability, truth)
    return EpochPlan(
        streams={name: indices for name, indices in streams.items() if len(indices)},
        report=report,
        warnings=split_warnings(fitted, called_matched),
    )


def split_warnings(fitted: mixture.BetaMixture, called_matched: np.ndarray) -> dict[str, str]:
    """What makes a split doubtful, by the name of the sign."""
    found = {}
    share = np.mean(called_matched)
    if not fitted.weights[1]:
        found["equal_losses"] = (
            f"all pairs have the loss {fitted.low:.4g} and count as matched: the model tells no "
            "pair from another. Try more train.warmup_epochs or a lower optim.learning_rate"
        )
    elif min(share, 1 - share) < SMALLEST_SIDE:
        found["one_sided_split"] = (
            f"{share:.1%} of the pairs are called matched, {1 - share:.1%} mismatched: the epoch "
            "trains on (nearly) one kind alone. That is right where the data have (nearly) no pair "
            "of the other kind; else the losses do not tell the two apart. Try more "
            "train.warmup_epochs, or fewer if the model fits all pairs by now"
        )
    elif fitted.separation < SEPARATION:
        found["overlapping_mixture"] = (
            f"the means of the mixture's components are only {fitted.separation:.2f} of their "
            "summed standard deviations apart: the losses have one hump, and the split cuts "
            "through it. Try more train.warmup_epochs; if the data have no mismatched pairs, "
            "method=triplet"
        )
    if not fitted.is_consistent:
        found["mixture_direction"] = (
            "the lowest losses are likelier under the component with the higher mean: which pairs "
            "are mismatched is doubtful. Try more train.warmup_epochs or, with l2rm, another "
            "l2rm.warmup_loss"
        )
    return found


def split_quality(called_matched: np.ndarray, probability: np.ndarray, truth: np.ndarray) -> dict:
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
