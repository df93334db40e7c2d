"""Warnings for a run that is not learning: the symptom, why it matters, what to try.

`epoch_warnings` and `plan_warnings` are pure functions of an epoch's numbers; warnings about the
split of the pairs come from `methods/split.py`, others from the method (`Method.warnings`).
`Health` decides which warnings are shown: each once in the warm-up and once after it, and those in
`PERSISTENT` again if they return.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.errors import DivergedError
from l2rm_jax.evaluation.recall import (
    DIRECTIONS,
    RECALL_AT,
    Counts,
    chance_recalls,
    describe_counts,
)
from l2rm_jax.methods import Method
from l2rm_jax.run.log import END

Warnings = dict[str, str]  # name of a warning ("sign" in files) -> message

# A model that learns shows these for a while too: it starts at chance, and its loss starts above
# the flat value. With 5000 pairs at mismatch rate 0.6 that takes up to three epochs of 78 steps.
PERSISTENT = ("recall_at_chance", "flat_loss")
# They are shown from this epoch of a run on (the first is 1), after this many epochs in a row.
FIRST_EPOCH = 4
EPOCHS_IN_A_ROW = 2
# An rSum up to this many standard deviations of random rankings above their mean counts as chance,
CHANCE_DEVIATIONS = 3.0
# but at most this share of the range from chance to a perfect rSum: with few images, random
# rankings vary a lot.
CHANCE_SHARE = 0.25
# A collapsed triplet loss stays within 0.1% of the flat value. The losses that learn most slowly,
# at mismatch rate 0.6, are 0.3% (InfoNCE) and 1.3% (RCE) away from it in the fourth epoch.
FLAT_TOLERANCE = 0.002


class Reference(NamedTuple):
    """Values that the numbers of an epoch are compared with.

    Attributes:
      images: number of images of the validation split.
      captions_per_image: captions of each of these images.
      batch_size: pairs per step.
      warmup_epochs: number of warm-up epochs.
      warms_up: whether the warm-up differs from the epochs after it: they split the pairs, or have
        another loss.
      flat_losses: for each stream that an epoch may pass over, the metric of its loss and the
        value of that loss when all similarities are equal.
      own_warnings: warnings of the method (`Method.warnings`).
    """

    images: int
    captions_per_image: Counts
    batch_size: int
    warmup_epochs: int
    warms_up: bool
    flat_losses: Mapping[str, tuple[str, float]]
    own_warnings: Callable[[Mapping[str, float], Mapping[str, float]], Warnings]


def make_reference(config: Any, dev: TrainPairs, method: Method) -> Reference:
    """Make the reference for a run with this config and validation split."""
    size = config.train.batch_size
    equal, losses = jnp.zeros((size, size)), method.losses
    warmup = {losses[stream] for stream in losses if stream.startswith("warmup")}
    later = {losses.get(stream) for stream in method.streams}
    return Reference(
        images=len(dev.images),
        captions_per_image=dev.captions_per_image,
        batch_size=size,
        warmup_epochs=config.train.warmup_epochs,
        warms_up=method.splits or not warmup <= later,
        flat_losses={name: (metric, float(loss(equal))) for name, (metric, loss) in losses.items()},
        own_warnings=method.warnings,
    )


class Health:
    """The warnings of a run, and which of them are new.

    Args:
      reference: values that the numbers of an epoch are compared with.
      history: the attribute `history` of the run that is resumed; None for a new run.
    """

    def __init__(self, reference: Reference, history: Mapping[str, Any] | None = None):
        self._reference = reference
        # since: for each warning of PERSISTENT that holds now, the epoch since which it holds.
        # first: each metric in the first epoch that reported it.
        self.history = dict(history or {"warnings": [], "since": {}, "first": {}})
        self._ending: list[dict] = []

    @property
    def warnings(self) -> list[dict]:
        """All warnings so far, with the keys `epoch`, `phase`, `sign` (name) and `message`."""
        return self.history["warnings"] + self._ending

    def check_plan(
        self, epoch: int, streams: Mapping[str, Sequence[int]], warnings: Warnings
    ) -> list[dict]:
        """New warnings about the plan of an epoch.

        Args:
          epoch: the epoch, counted from 0.
          streams: rows of pairs by stream name.
          warnings: warnings of the method about its plan (`EpochPlan.warnings`).
        """
        own = plan_warnings(streams, self._reference.batch_size)
        return self._record_new(epoch, {**warnings, **own})

    def check_epoch(self, epoch: int, stream: str, report: Mapping[str, float]) -> list[dict]:
        """New warnings about a finished epoch.

        Args:
          epoch: the epoch, counted from 0.
          stream: name of the stream that the epoch passed over.
          report: means of the step metrics and validation recalls of the epoch.
        """
        warnings = epoch_warnings(report, stream, self._reference, self.history["first"])
        before, number = self.history["since"], epoch + 1
        since = {name: before.get(name, number) for name in warnings if name in PERSISTENT}
        self.history["since"] = since
        too_early = {
            name
            for name, first in since.items()
            if number < FIRST_EPOCH or number - first + 1 < EPOCHS_IN_A_ROW
        }
        self.history["first"] = {**report, **self.history["first"]}
        shown = {name: text for name, text in warnings.items() if name not in too_early}
        return self._record_new(epoch, shown)

    def check_end(self, epochs: int, best_rsum: float) -> list[dict]:
        """Warnings at the end of a run of any length, unless its last epoch has just given them.

        They are not part of the history, as a finished run may be given more epochs.
        """
        at_chance = _at_chance(best_rsum, self._reference)
        message = (
            f"the run ends at chance: its best validation rSum is {at_chance}. The test table is "
            f"not evidence about the method. {_try_to_rank(self._reference)}"
        )
        fields = {"epoch": epochs, "phase": END, "sign": "ends_at_chance", "message": message}
        is_said = any(
            (warning["epoch"], warning["sign"]) == (epochs, "recall_at_chance")
            for warning in self.history["warnings"]
        )
        self._ending = [fields] if at_chance and not is_said else []
        return self._ending

    def _record_new(self, epoch: int, warnings: Warnings) -> list[dict]:
        """Add the warnings that were not shown yet to the history, and return them."""
        phase = "warm-up" if epoch < self._reference.warmup_epochs else "main"
        since = self.history["since"]
        shown_before = {
            warning["sign"]
            for warning in self.history["warnings"]
            if warning["phase"] == phase and warning["epoch"] >= since.get(warning["sign"], 0)
        }
        new = [
            {"epoch": epoch + 1, "phase": phase, "sign": name, "message": message}
            for name, message in warnings.items()
            if name not in shown_before
        ]
        self.history["warnings"] = self.history["warnings"] + new
        return new


def plan_warnings(streams: Mapping[str, Sequence[int]], batch_size: int) -> Warnings:
    """Warnings about streams with fewer pairs than a batch."""
    harm = {"mismatched": "an image is rematched only with the captions of these few pairs"}
    # No batch is smaller than 2.
    advice = "a smaller train.batch_size" if batch_size > 2 else "more training pairs"
    return {
        f"few_{name}": (
            f"the stream of {name} pairs has {len(rows)}, fewer than a batch of {batch_size}: they "
            f"repeat within the batch, and "
            f"{harm.get(name.partition('_')[0], 'a pair has its copies as negatives')}. "
            f"Try {advice}"
        )
        for name, rows in streams.items()
        if len(rows) < batch_size
    }


def epoch_warnings(
    report: Mapping[str, float],
    stream: str,
    reference: Reference,
    first: Mapping[str, float],
) -> Warnings:
    """Warnings about the numbers of one epoch, whatever the epochs before it were.

    Args:
      report: means of the step metrics and validation recalls; a metric that the method does not
        report is not checked.
      stream: name of the stream that the epoch passed over.
      reference: values that the numbers are compared with.
      first: each metric in the first epoch that reported it, of the epochs before.
    """
    known = {}
    if at_chance := _at_chance(report["rsum"], reference):
        known["recall_at_chance"] = (
            f"validation rSum is {at_chance}: the model ranks at random, so results that depend on "
            f"its similarities are meaningless. {_try_to_rank(reference)}"
        )
    metric, flat = reference.flat_losses.get(stream, ("", 0.0))
    if metric and abs(report[metric] - flat) < FLAT_TOLERANCE * flat:
        known["flat_loss"] = (
            f"{metric} is {report[metric]:.4g}; it is {flat:.4g} when all similarities are equal: "
            f"the model does not distinguish pairs. {_try_to_learn(reference)}"
        )
    return known | reference.own_warnings(report, first)


def _at_chance(rsum: float, reference: Reference) -> str | None:
    """Compare a validation rSum with random rankings; None if it is clearly higher."""
    chance, margin = chance_rsum(reference.images, reference.captions_per_image)
    if not rsum < chance + margin:
        return None
    return (
        f"{rsum:.1f}; chance with {reference.images} images of "
        f"{describe_counts(reference.captions_per_image)} captions is {chance:.1f} +/- {margin:.1f}"
    )


def _try_to_rank(reference: Reference) -> str:
    return (
        f"{_try_to_learn(reference)}, and verify with l2rm check that images and captions belong "
        "together"
    )


def _try_to_learn(reference: Reference) -> str:
    warmup = " or more train.warmup_epochs" if reference.warms_up else ""
    return f"Try a lower optim.learning_rate{warmup}"


def chance_rsum(images: int, captions_per_image: Counts) -> tuple[float, float]:
    """Expected rSum of random rankings, and the margin above it that may still be chance.

    The standard deviations of the six recalls are added, as for fully correlated recalls, because
    recalls at different k share their rankings.

    Returns:
      The expected rSum and the margin, both in units of rSum (0 to 600).
    """
    row = chance_recalls(images, captions_per_image)
    captions = int(np.broadcast_to(captions_per_image, images).sum())
    deviation = 0.0
    for direction, queries in zip(DIRECTIONS, (images, captions), strict=True):
        for k in RECALL_AT:
            recall = row[f"{direction}_r{k}"] / 100
            deviation += 100 * math.sqrt(recall * (1 - recall) / queries)
    perfect = 100.0 * len(DIRECTIONS) * len(RECALL_AT)
    margin = CHANCE_SHARE * (perfect - row["rsum"])
    return row["rsum"], min(CHANCE_DEVIATIONS * deviation, margin)


def require_finite(values: Mapping[str, Any], step: int, epoch: int, details: str = "") -> None:
    """Raise an error if any number is NaN or infinite, to stop a run before it saves them.

    Args:
      values: arrays or numbers, by the name for the message.
      step: global step of these values.
      epoch: the running epoch, counted from 1.
      details: part of the message, instead of the default advice about the checkpoints.

    Raises:
      DivergedError: names the values, the step and the epoch.
    """
    for name, value in values.items():
        finite = np.isfinite(value)
        if not finite.all():
            bad = np.asarray(value)[~finite]
            description = f"{bad[0]}" if np.ndim(value) == 0 else f"{bad[0]} in {bad.size} places"
            raise DivergedError(
                f"{name}: {description} at step {step} of epoch {epoch}, expected finite numbers; "
                f"{details or 'the checkpoints hold the run as it was before'}. Try, in another "
                "workdir, a lower optim.learning_rate or a lower optim.grad_clip"
            )
