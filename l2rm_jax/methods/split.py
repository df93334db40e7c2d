"""Which pairs count as matched in an epoch: the split of L2RM (Sec. 4.1), and by a judgement."""

from collections.abc import Callable

import numpy as np

from l2rm_jax import mixture
from l2rm_jax.auroc import auroc
from l2rm_jax.data import PairDataset
from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.errors import DataError
from l2rm_jax.methods.base import EpochPlan, LossSplit

SPLITS = ("loss", "judgement")  # values of `split.by`
# A split with a smaller share of the pairs on one side is doubtful: no protocol is that uneven.
SMALLEST_SIDE = 0.02
# Components fitted to losses with one hump are 0.1 to 0.5 summed standard deviations apart, those
# fitted to two humps more than 0.5.
SEPARATION = 0.5


def split(by: str, dataset: PairDataset, losses: Callable[[], np.ndarray]) -> EpochPlan:
    """Split the pairs of a data set into matched and mismatched ones.

    Args:
      by: one of `SPLITS`.
      dataset: the pairs; with "judgement", they have a posterior.
      losses: returns the loss of each pair under the current model; called with "loss" alone.

    Returns:
      A plan as `split_pairs` and `split_by_posterior` make it.
    """
    if by == "loss":
        return split_pairs(losses(), dataset.matched)
    return split_by_posterior(dataset.posterior, dataset.matched)


def call_matched(mismatched_posterior: np.ndarray) -> np.ndarray:
    """Which pairs are matched, by their posterior of being mismatched, `[M]`."""
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
      call: tells which pairs are matched from their posteriors of being mismatched.

    Returns:
      A plan with the streams "matched" and "mismatched" (an empty one is left out). The report has
      their sizes, the separation of the mixture's components, and the quality of the split. The
      warnings say why the split is doubtful. `split` has the losses and posteriors themselves.
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
    """The plan of a split that is made; arguments as in `split_quality`, and any truth."""
    streams = {
        "matched": np.flatnonzero(called_matched),
        "mismatched": np.flatnonzero(~called_matched),
    }
    report = {name: len(indices) for name, indices in streams.items()}
    if not truth.all():
        report |= split_quality(probability, truth, called_matched)
    return EpochPlan({name: rows for name, rows in streams.items() if len(rows)}, report)


def warmup_pairs(by: str, dataset: PairDataset) -> np.ndarray:
    """Rows of the pairs that a warm-up trains: all; by a judgement, the matched ones.

    A split by loss needs a model, which the warm-up trains. A judgement knows the matched pairs
    before it, so the model need not learn the mismatched ones.

    Raises:
      DataError: the judgement calls no pair matched.
    """
    if by == "loss":
        return np.arange(len(dataset))
    matched = np.flatnonzero(call_matched(dataset.posterior))
    if not len(matched):
        raise DataError(
            f"split.by=judgement calls none of the {len(dataset)} training pairs matched: the "
            f"lowest posterior is {dataset.posterior.min():.3f}, expected some of at most "
            f"{SUSPICIOUS}. The features may not show what fits; split.by=loss trains on all"
        )
    return matched


def split_warnings(fitted: mixture.Mixture, called_matched: np.ndarray) -> dict[str, str]:
    """Messages on why a split is doubtful, by the name of the warning."""
    warnings = {}
    share = np.mean(called_matched)
    if not fitted.weights[1]:
        warnings["equal_losses"] = (
            f"all pairs have the loss {fitted.low:.4g} and count as matched: the model does not "
            "tell pairs apart. Try more train.warmup_epochs or a lower optim.learning_rate"
        )
    elif min(share, 1 - share) < SMALLEST_SIDE:
        warnings["one_sided_split"] = (
            f"{share:.1%} of the pairs are called matched, {1 - share:.1%} mismatched: the epoch "
            "trains almost only on one kind. If the data have almost no pairs of the other kind, "
            "this is right; otherwise the losses do not tell the two kinds apart. Try more "
            "train.warmup_epochs, or fewer if the model already fits all pairs"
        )
    elif fitted.separation < SEPARATION:
        warnings["overlapping_mixture"] = (
            "the means of the mixture's two components are only "
            f"{fitted.separation:.2f} times the sum of their standard deviations apart: the losses "
            "have one hump, and the split cuts through it. Try more train.warmup_epochs, or "
            "method=triplet if the data have no mismatched pairs"
        )
    if not fitted.is_consistent:
        warnings["mixture_direction"] = (
            "the lowest losses are likelier under the mixture component with the higher mean, "
            "which stands for the mismatched pairs: it is doubtful which pairs are mismatched. Try "
            "more train.warmup_epochs or, with l2rm, another l2rm.warmup_loss"
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
