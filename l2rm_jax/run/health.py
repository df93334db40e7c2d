"""Signs that a run is not learning: what was seen, why it matters, what to try.

`epoch_warnings` and `plan_warnings` are pure functions from an epoch's numbers to warnings by the
name of the sign; what only a split can see is in `methods/split.py`. `Health` decides what is said:
each sign once in the warm-up and once after it, and those of `LASTING` again when they come back.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.errors import DivergedError
from l2rm_jax.evaluation.recall import RECALL_AT, Counts, describe_counts

Warnings = dict[str, str]  # name of a sign -> what to tell a person

# A model that learns passes these on its way: it starts at chance, and its loss sinks past the flat
# one. On 5000 pairs, 0.6 of them mismatched, that takes up to three epochs of 78 steps.
LASTING = ("recall_at_chance", "flat_loss")
PATIENCE = 4  # the first epoch of a run in which they can be told,
LASTS = 2  # when they have held in so many epochs running
# Chance is a mean over random rankings: their standard deviation is the unit of what may be luck.
CHANCE_DEVIATIONS = 3.0
# With few images luck reaches far up; never call more than this share of what is above it luck.
CHANCE_SHARE = 0.25
# A collapsed triplet loss stays within 0.1% of the flat value; the slowest learning losses, at a
# mismatch rate of 0.6, are 0.3% (InfoNCE) and 1.3% (RCE) off in the fourth epoch.
FLAT_TOLERANCE = 0.002
# The cost of a healthy run keeps its spread within a factor of two.
SPREAD_LOST = 0.1
# Costs that differ by this share of epsilon give plan entries that differ by as little.
SPREAD_OF_EPSILON = 0.1
# Entries at zero cannot be told apart; by then most of the row is.
MOST_ZERO = 0.5
# The solver converges in every step of a healthy run; a rare miss does no harm.
CONVERGED_SHARE = 0.9


class Reference(NamedTuple):
    """What the numbers of an epoch are compared with."""

    images: int  # of the validation split
    captions_per_image: Counts
    batch_size: int
    cost: str  # of the transport: learned, cosine
    epsilon: float  # likewise
    warmup_epochs: int
    warms_up: bool  # whether their loss is another than that of the epochs after them
    # By the stream that an epoch passes over: a metric, and its value at equal similarities.
    flat_losses: Mapping[str, tuple[str, float]]


def make_reference(
    config: Any, dev: PairDataset, losses: Mapping[str, tuple[str, Callable]]
) -> Reference:
    """The reference of a run; `losses` are its method's."""
    size = config.train.batch_size
    equal = jnp.zeros((size, size))
    return Reference(
        images=len(dev.images),
        captions_per_image=dev.captions_per_image,
        batch_size=size,
        cost=config.l2rm.cost,
        epsilon=config.l2rm.epsilon,
        warmup_epochs=config.train.warmup_epochs,
        warms_up=len({loss for _, loss in losses.values()}) > 1,
        flat_losses={name: (metric, float(loss(equal))) for name, (metric, loss) in losses.items()},
    )


class Health:
    """The warnings of a run.

    Args:
      reference: see `Reference`.
      history: what `history` was in the run that is continued; None for a new run.
    """

    def __init__(self, reference: Reference, history: Mapping[str, Any] | None = None):
        self._reference = reference
        # `since`: by sign of `LASTING`, the first of the epochs in which it has held without a gap.
        self.history = {"warnings": [], "since": {}, "cost_spread": None, **(history or {})}

    @property
    def warnings(self) -> list[dict]:
        """Every warning so far: epoch, phase, the name of the sign, message."""
        return self.history["warnings"]

    def check_plan(
        self, epoch: int, streams: Mapping[str, Sequence[int]], signs: Warnings
    ) -> list[dict]:
        """The new warnings about an epoch's plan; `signs` are those that the method saw."""
        return self._new(epoch, {**signs, **plan_warnings(streams, self._reference.batch_size)})

    def check_epoch(self, epoch: int, stream: str, report: Mapping[str, float]) -> list[dict]:
        """The new warnings about the numbers of a finished epoch that passed over `stream`."""
        first_spread = self.history["cost_spread"]
        seen = epoch_warnings(report, stream, self._reference, first_spread)
        before, number = self.history["since"], epoch + 1
        since = {sign: before.get(sign, number) for sign in seen if sign in LASTING}
        self.history["since"] = since
        passing = {
            sign for sign, first in since.items() if number < PATIENCE or number - first + 1 < LASTS
        }
        told = {sign: text for sign, text in seen.items() if sign not in passing}
        if first_spread is None:
            self.history["cost_spread"] = report.get("cost_spread")
        return self._new(epoch, told)

    def _new(self, epoch: int, signs: Warnings) -> list[dict]:
        phase = "warm-up" if epoch < self._reference.warmup_epochs else "main"
        since = self.history["since"]
        said = {
            warning["sign"]
            for warning in self.warnings
            if warning["phase"] == phase and warning["epoch"] >= since.get(warning["sign"], 0)
        }
        new = [
            {"epoch": epoch + 1, "phase": phase, "sign": sign, "message": message}
            for sign, message in signs.items()
            if sign not in said
        ]
        self.history["warnings"] = self.warnings + new
        return new


def plan_warnings(streams: Mapping[str, Sequence[int]], batch_size: int) -> Warnings:
    """Streams that do not fill a batch."""
    harm = {"mismatched": "an image is rematched with the captions of these few alone"}
    return {
        f"few_{name}": (
            f"the stream of {name} pairs has {len(rows)}, fewer than a batch of {batch_size}: they "
            f"repeat within the batch, and {harm.get(name, 'a pair has its copies as negatives')}. "
            "Try a smaller train.batch_size"
        )
        for name, rows in streams.items()
        if len(rows) < batch_size
    }


def epoch_warnings(
    report: Mapping[str, float], stream: str, reference: Reference, first_spread: float | None
) -> Warnings:
    """What an epoch's numbers show, those of `LASTING` included before they have lasted.

    Args:
      report: the epoch's means and validation recalls; what a method does not report is not judged.
      stream: the one that the epoch passed over.
      reference: see `Reference`.
      first_spread: `cost_spread` of the first rematching epoch; None if there was none before.
    """
    signs = {
        "recall_at_chance": _recall(report, reference),
        "flat_loss": _flat_loss(report, stream, reference),
        "cost_spread": _cost_spread(report, reference, first_spread),
        "cost_zero": _cost_zero(report, reference),
        "transport": _transport(report),
    }
    return {sign: text for sign, text in signs.items() if text}


def _recall(report: Mapping[str, float], reference: Reference) -> str | None:
    chance, margin = chance_rsum(reference.images, reference.captions_per_image)
    if not report["rsum"] < chance + margin:
        return None
    return (
        f"validation rSum is {report['rsum']:.1f}, and chance with {reference.images} images of "
        f"{describe_counts(reference.captions_per_image)} captions is {chance:.1f}, give or take "
        f"{margin:.1f}: the model ranks at random, so nothing that builds on its similarities can "
        f"be right. {_try_to_learn(reference)}, and see with --mode=check that images and captions "
        "belong together"
    )


def _flat_loss(report: Mapping[str, float], stream: str, reference: Reference) -> str | None:
    if stream not in reference.flat_losses:
        return None
    metric, flat = reference.flat_losses[stream]
    if abs(report[metric] - flat) >= FLAT_TOLERANCE * flat:
        return None
    return (
        f"{metric} is {report[metric]:.4g}, and {flat:.4g} is its value where all similarities are "
        f"equal: the model tells no pair from another. {_try_to_learn(reference)}"
    )


def _try_to_learn(reference: Reference) -> str:
    warmup = " or more train.warmup_epochs" if reference.warms_up else ""
    return f"Try a lower optim.learning_rate{warmup}"


def _cost_spread(
    report: Mapping[str, float], reference: Reference, first_spread: float | None
) -> str | None:
    spread, epsilon = report.get("cost_spread", math.inf), reference.epsilon
    if first_spread is not None and spread < SPREAD_LOST * first_spread:
        seen = f"it was {first_spread:.3g} in the first rematching epoch"
    elif spread < SPREAD_OF_EPSILON * epsilon:
        seen = f"l2rm.epsilon is {epsilon:.3g}"
    else:
        return None
    learned = "a lower l2rm.cost_learning_rate, l2rm.cost=cosine, or "
    return (
        f"the transport cost has a spread of {spread:.3g} within a row, and {seen}: all captions "
        "cost an image the same, so the plan is nearly uniform and rematching teaches nothing. "
        f"Try {learned if reference.cost == 'learned' else ''}a smaller l2rm.epsilon; if the "
        "recalls are poor too, more train.warmup_epochs"
    )


def _cost_zero(report: Mapping[str, float], reference: Reference) -> str | None:
    share = report.get("cost_zero", 0.0)
    if share <= MOST_ZERO:
        return None
    if reference.cost == "learned":
        why = "the learned cost has sunk to where it no longer tells pairs apart"
        remedy = "Try a lower l2rm.cost_learning_rate or l2rm.cost=cosine"
    else:
        why = "images and captions have one embedding"
        remedy = _try_to_learn(reference)
    return f"{share:.0%} of the transport costs are zero: {why}. {remedy}"


def _transport(report: Mapping[str, float]) -> str | None:
    share = report.get("transport_converged", 1.0)
    if share >= CONVERGED_SHARE:
        return None
    return (
        f"transport did not converge in {1 - share:.0%} of the steps: the plans only roughly have "
        "the mass and the marginals asked for. Try a larger l2rm.epsilon or a smaller l2rm.rho"
    )


def chance_rsum(images: int, captions_per_image: Counts) -> tuple[float, float]:
    """rSum of random rankings, and how much more may be luck.

    An image's best caption is among the first k of M unless all k are drawn from the M - c others;
    a caption's image is with probability k / N. The deviations of the six recalls are added as if
    luck in one were luck in all: they share their rankings.
    """
    counts = np.broadcast_to(captions_per_image, images)
    captions = int(counts.sum())
    numbers, of_images = np.unique(counts, return_counts=True)
    chance = deviation = 0.0
    for k in RECALL_AT:
        k_captions, k_images = min(k, captions), min(k, images)
        draws = math.comb(captions, k_captions)
        missed = [math.comb(captions - int(number), k_captions) / draws for number in numbers]
        for share, queries in (
            (1 - float(np.average(missed, weights=of_images)), images),
            (k_images / images, captions),
        ):
            chance += 100 * share
            deviation += 100 * math.sqrt(share * (1 - share) / queries)
    most = 100.0 * 2 * len(RECALL_AT)
    return chance, min(CHANCE_DEVIATIONS * deviation, CHANCE_SHARE * (most - chance))


def require_finite(values: Mapping[str, Any], step: int, epoch: int, known: str = "") -> None:
    """Stops a run whose numbers are no longer finite, before they are saved.

    Args:
      values: arrays or numbers by what they are.
      step: the step that they come from.
      epoch: the running epoch, the first being 1.
      known: what else a person should know.

    Raises:
      DivergedError: names what is not finite, the step and the epoch.
    """
    for name, value in values.items():
        finite = np.isfinite(value)
        if not finite.all():
            bad = np.asarray(value)[~finite]
            found = f"{bad[0]}" if np.ndim(value) == 0 else f"{bad[0]} in {bad.size} places"
            raise DivergedError(
                f"{name}: {found} at step {step} of epoch {epoch}, expected finite numbers; "
                f"{known or 'the checkpoints hold the run as it was before'}. Try, in another "
                "workdir, a lower optim.learning_rate or a lower optim.grad_clip"
            )
