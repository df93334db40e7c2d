"""Split the pairs into matched and mismatched, by loss (L2RM Sec. 4.1) or by a judgement."""

from collections.abc import Callable

import numpy as np

from l2rm_jax import mixture
from l2rm_jax.auroc import auroc
from l2rm_jax.data import TrainPairs
from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.errors import DataError
from l2rm_jax.methods.base import EpochPlan, LossSplit

SPLITS = ("loss", "judgement")  # values of `split.by`
# A split with a smaller share of the pairs on one side is unreliable: no protocol is that uneven.
SMALLEST_SIDE = 0.02
# Components fitted to losses with one peak are 0.1 to 0.5 summed standard deviations apart, with
# two peaks more than 0.5.
SEPARATION = 0.5


def split(by: str, dataset: TrainPairs, losses: Callable[[], np.ndarray]) -> EpochPlan:
    """Split the pairs of a data set into matched and mismatched ones.

    Args:
      by: one of `SPLITS`.
      dataset: the pairs; with "judgement", they have a posterior.
      losses: returns the loss of each pair under the current model; called only for "loss".

    Returns:
      The plan of `split_pairs` or `split_by_posterior`.
    """
    if by == "loss":
        return split_pairs(losses(), dataset.matched)
    return split_by_posterior(dataset.posterior, dataset.matched)


def call_matched(mismatched_posterior: np.ndarray) -> np.ndarray:
    """Call pairs matched if their posterior of being mismatched, `[M]`, is at most 0.5."""
    return mismatched_posterior <= SUSPICIOUS


def split_pairs(
    losses: np.ndarray,
    truth: np.ndarray,
    fit: Callable[[np.ndarray], mixture.Mixture] = mixture.fit,
    call: Callable[[np.ndarray], np.ndarray] = call_matched,
) -> EpochPlan:
    """Split the pairs into matched and mismatched ones by a mixture fitted to their losses.

    Args:
      losses: loss of each pair under the current model, `[M]`.
      truth: False for pairs known to be mismatched, `[M]`. Used only to report the quality of the
        split. If no entry is False, the truth counts as unknown and no quality is reported.
      fit: fits the mixture.
      call: calls pairs matched or not, given their posteriors of being mismatched.

    Returns:
      A plan with the streams "matched" and "mismatched" (an empty one is left out). The report has
      their sizes, the separation of the mixture's components, and the quality of the split. The
      warnings say why the split is unreliable. `split` has the losses and posteriors.
    """
    fitted = fit(losses)
    probability = fitted.mismatched_posterior(losses)
    called_matched = call(probability)
    plan = plan_sides(called_matched, probability, truth)
    return EpochPlan(
        plan.streams,
        {**plan.report, "split_separation": fitted.separation},
        split_warnings(fitted, called_matched),
        LossSplit(losses, probability, called_matched),
    )


def split_by_posterior(probability: np.ndarray, truth: np.ndarray) -> EpochPlan:
    """Split the pairs by their posterior of being mismatched.

    Args:
      probability: posterior of each pair, `[M]`, in [0, 1].
      truth: as in `split_pairs`.

    Returns:
      A plan as `split_pairs` makes it, without a separation and without warnings.
    """
    return plan_sides(call_matched(probability), probability, truth)


def plan_sides(called_matched: np.ndarray, probability: np.ndarray, truth: np.ndarray) -> EpochPlan:
    """Make the plan of a given split; arguments as in `split_quality`, but with any truth."""
    streams = {
        "matched": np.flatnonzero(called_matched),
        "mismatched": np.flatnonzero(~called_matched),
    }
    report = {name: len(indices) for name, indices in streams.items()}
    if not truth.all():
        report |= split_quality(probability, truth, called_matched)
    return EpochPlan({name: rows for name, rows in streams.items() if len(rows)}, report)


def warmup_pairs(by: str, dataset: TrainPairs) -> np.ndarray:
    """Rows of the warm-up's pairs: all of them, or with a judgement only the matched ones.

    A split by loss needs a model, which the warm-up trains. A judgement exists before the warm-up,
    so the model never has to see the mismatched pairs.

    Raises:
      DataError: the judgement calls no pair matched.
    """
    if by == "loss":
        return np.arange(len(dataset))
    matched = np.flatnonzero(call_matched(dataset.posterior))
    if not len(matched):
        raise DataError(
            f"split.by=judgement: found no matched pair among {len(dataset)} training pairs "
            f"(lowest posterior {dataset.posterior.min():.3f}), expected some posteriors of at "
            f"most {SUSPICIOUS}. The features may be too weak to judge the pairs; split.by=loss "
            "warms up on all pairs"
        )
    return matched


def split_warnings(fitted: mixture.Mixture, called_matched: np.ndarray) -> dict[str, str]:
    """Warn if a split is unreliable: messages by the name of the warning."""
    warnings = {}
    share = np.mean(called_matched)
    if not fitted.weights[1]:
        warnings["equal_losses"] = (
            f"all pairs have the loss {fitted.low:.4g} and count as matched: the model does not "
            "distinguish pairs. Try more train.warmup_epochs or a lower optim.learning_rate"
        )
    elif min(share, 1 - share) < SMALLEST_SIDE:
        warnings["one_sided_split"] = (
            f"{share:.1%} of the pairs are called matched, {1 - share:.1%} mismatched: the epoch "
            "trains almost only on one kind. If the data have almost no pairs of the other kind, "
            "this is right; otherwise the losses do not separate the two kinds. Try more "
            "train.warmup_epochs, or fewer if the model already fits all pairs"
        )
    elif fitted.separation < SEPARATION:
        warnings["overlapping_mixture"] = (
            "the means of the mixture's two components are only "
            f"{fitted.separation:.2f} summed standard deviations apart: the losses have a single "
            "peak, and the split cuts through it. Try more train.warmup_epochs, or "
            "method=triplet if the data have no mismatched pairs"
        )
    if not fitted.is_consistent:
        warnings["mixture_direction"] = (
            "the lowest losses are likelier under the mixture component with the higher mean, "
            "which represents the mismatched pairs, so the split is unreliable. Try more "
            "train.warmup_epochs or, with l2rm, another l2rm.warmup_loss"
        )
    return warnings


def split_quality(
    probability: np.ndarray, truth: np.ndarray, called_matched: np.ndarray | None = None
) -> dict:
    """Compare a split with the known truth.

    Args:
      probability: posterior of being mismatched, `[M]`, in [0, 1].
      truth: True for pairs that are matched, `[M]`; at least one is not.
      called_matched: True for pairs that the split calls matched, `[M]`; None: by the posterior.

    Returns:
      `split_accuracy` over all pairs; `split_precision` and `split_recall` of the matched side;
      `split_auroc` of the posterior as a detector of mismatched pairs. A number whose denominator
      would be 0 is left out.
    """
    called_matched = call_matched(probability) if called_matched is None else called_matched
    right = called_matched & truth
    report = {"split_accuracy": float(np.mean(called_matched == truth))}
    if called_matched.any():
        report["split_precision"] = float(right.sum() / called_matched.sum())
    if truth.any():
        report["split_recall"] = float(right.sum() / truth.sum())
        report["split_auroc"] = auroc(probability, ~truth)
    return report
