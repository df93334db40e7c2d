"""NCR: two networks split the pairs for each other; each pair's margin grows with its label.

Huang et al., "Learning with Noisy Correspondence for Cross-modal Matching", NeurIPS 2021.
`co_teaching.py` has the loop. An epoch after the warm-up:

1. A Gaussian mixture splits the losses of each network; the other network trains on the two sides.
2. Matched pairs have the label w + (1 - w) p, where w is the probability of being matched and p the
   network's own prediction for the pair. One update minimises the triplet loss of the hardest
   negatives, with a margin that grows with the label.
3. From `co_teaching.mismatched_epoch` on (the authors: half of the epochs), a second update trains
   mismatched pairs, with the mean prediction of both networks as label.

`co_teaching.margins=code` follows the public code of November 2023, which differs from the paper:
every entry of the similarity matrix has its own margin, from the label of its row and the
prediction of its column; and the label of an image's own pair sets the margin in both directions.
"""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from l2rm_jax import mixture
from l2rm_jax.losses import ranking
from l2rm_jax.methods import base
from l2rm_jax.methods.base import EpochPlan, Method, TrainState
from l2rm_jax.methods.co_teaching import (
    WEIGHT,
    CoTeaching,
    joined_metrics,
    make_co_teaching,
    soft_triplet,
)
from l2rm_jax.methods.pair_values import read_pair_values
from l2rm_jax.methods.registry import register_method
from l2rm_jax.methods.split import split_pairs


def make(model, config) -> Method:
    """Make NCR for this model; raises `ConfigError` as `make_co_teaching`."""
    margin, optimiser = config.loss.margin, base.model_optimiser(config)
    settings = config.co_teaching

    def update(own: TrainState, peer: TrainState, batches: dict) -> tuple[TrainState, dict]:
        predicted = partial(predict, model, margin)
        labels = {}
        if "matched" in batches:
            pairs = batches["matched"]
            weight = read_pair_values(own, WEIGHT, pairs, model.axis_name)
            labels["matched"] = clean_labels(weight, predicted(own, pairs), settings.margins)
        if "mismatched" in batches:
            pairs = batches["mismatched"]
            both = (predicted(own, pairs) + predicted(peer, pairs)) / 2
            labels["mismatched"] = _by_row(both) if settings.margins == "code" else both
        metrics = {}
        uses = {"matched": base.DROPOUT_A, "mismatched": base.DROPOUT_B}
        for stream, label in labels.items():
            loss, pairs = soft_triplet(config, label), batches[stream]
            own, metrics[stream] = base.update_on(model, loss, optimiser, own, pairs, uses[stream])
        return own, joined_metrics(metrics)

    parts = CoTeaching(
        warmup_loss=partial(ranking.triplet_mean, margin=margin),
        pair_losses=partial(base.pair_losses, model, margin),
        split=partial(
            split_pairs,
            fit=mixture.fit_gaussian,
            call=lambda mismatched_posterior: mixture.above_threshold(1 - mismatched_posterior),
        ),
        subsets=keep_weight,
        update=update,
        streams={"matched": 1, "mismatched": 1},
        pair_values={WEIGHT: 1.0},
        starts={"mismatched": settings.mismatched_epoch},
    )
    return make_co_teaching(model, config, optimiser, parts)


register_method("ncr", make)


def clean_labels(
    weight: Float[Array, " B"], predicted: Float[Array, " B"], margins: str
) -> Float[Array, "..."]:
    """Labels of the matched pairs of a batch, in [0, 1]: `[B]`, or `[B, B]` of all entries.

    Args:
      weight: probability of being matched.
      predicted: the network's own prediction for each pair.
      margins: "paper" or "code".
    """
    if margins == "code":
        return weight[:, None] + (1 - weight[:, None]) * predicted[None]
    return weight + (1 - weight) * predicted


def keep_weight(plan: EpochPlan, weight: np.ndarray, own: np.ndarray) -> EpochPlan:
    """Add the weights of the labels to the plan of a split."""
    return replace(plan, values={WEIGHT: weight})


def predict(model, margin: float, state: TrainState, batch) -> Float[Array, " B"]:
    """Predict in evaluation mode, for each pair of a batch, whether it is matched: 0 to 1."""
    return ranking.prediction(base.evaluate(model, state, batch), margin=margin)


def _by_row(label: Float[Array, " B"]) -> Float[Array, "B B"]:
    """Use the label of each image in both directions, as the authors' code does."""
    return jnp.broadcast_to(label[:, None], (len(label), len(label)))
