"""SPS: two networks split the pairs for each other into strictly clean, clean and noisy ones.

Xie et al., IJCAI 2025, as in its authors' code. `co_teaching.py` has the loop.

1. The warm-up trains InfoNCE on all pairs. Training continues from the warm-up model with the best
   validation rSum (the authors also require every recall to stay or rise).
2. A Gaussian mixture splits the InfoNCE losses of each network. A pair is strictly clean if its
   probability of being matched is above 0.6, clean if above 0.5, else noisy. The other network
   trains on these subsets, with one update for each:
   - strictly clean: InfoNCE and two penalties. One penalises, for two pairs, the difference
     between their two cross similarities; the other the difference between the similarities
     among images and among their captions;
   - clean, from `sps.clean_epoch` on, once over the subset in an epoch: InfoNCE weighted by labels
     as NCR's, w + (1 - w) p;
   - noisy, from `sps.noisy_epoch` on: each image gets the caption of the most similar image in
     the strictly clean batch; InfoNCE weighted by the network's prediction for that new pair.
"""

from dataclasses import replace
from functools import partial

import jax
import numpy as np

from l2rm_jax import mixture
from l2rm_jax.devices import parallel
from l2rm_jax.losses import contrastive, purification
from l2rm_jax.methods import base
from l2rm_jax.methods.base import EpochPlan, Method, TrainState
from l2rm_jax.methods.co_teaching import (
    WEIGHT,
    CoTeaching,
    best_warmup,
    info_nce_losses,
    joined_metrics,
    make_co_teaching,
    probabilities,
)
from l2rm_jax.methods.ncr import clean_labels
from l2rm_jax.methods.pair_values import read_pair_values
from l2rm_jax.methods.registry import register_method
from l2rm_jax.methods.split import split_pairs

STRICTLY_CLEAN, CLEAN = 0.6, 0.5  # a subset has the pairs with a higher weight
PENALTY = 25.0  # weight of each of the two penalties


def make(model, config) -> Method:
    """Make SPS for this model; raises `ConfigError` as `make_co_teaching`."""
    optimiser = base.model_optimiser(config)
    tau, warmup = config.loss.tau, config.train.warmup_epochs

    def update(own: TrainState, peer: TrainState, batches: dict) -> tuple[TrainState, dict]:
        metrics = {}
        if "strict" in batches:
            strict = batches["strict"]
            own, metrics["strict"] = _update_strict(model, optimiser, tau, own, strict)
        if "clean" in batches:
            pairs = batches["clean"]
            weight = read_pair_values(own, WEIGHT, pairs, model.axis_name)
            labels = clean_labels(weight, probabilities(model, tau, own, pairs), "paper")
            loss = partial(contrastive.info_nce, weights=labels, tau=tau)
            own, metrics["clean"] = base.update_on(
                model, loss, optimiser, own, pairs, base.DROPOUT_B
            )
        if "noisy" in batches and "strict" in batches:
            pairs, cosines = take_captions(model, own, batches["noisy"], strict)
            labels = purification.rematched_labels(probabilities(model, tau, own, pairs), cosines)
            loss = partial(contrastive.info_nce, weights=labels, tau=tau)
            own, metrics["noisy"] = base.update_on(
                model, loss, optimiser, own, pairs, base.DROPOUT_C
            )
        return own, joined_metrics(metrics)

    parts = CoTeaching(
        warmup_loss=partial(contrastive.info_nce, tau=tau),
        pair_losses=partial(info_nce_losses, model, tau),
        split=partial(split_pairs, fit=mixture.fit_gaussian),
        subsets=_subsets,
        update=update,
        streams={"strict": 1, "clean": 1, "noisy": 1},
        pair_values={WEIGHT: 1.0},
        starts={"clean": config.sps.clean_epoch, "noisy": config.sps.noisy_epoch},
        begin=partial(best_warmup, warmup),
        once=frozenset({"clean"}),
    )
    return make_co_teaching(model, config, optimiser, parts)


register_method("sps", make)


def take_captions(model, state: TrainState, noisy, strict):
    """Give each noisy image the caption of the most similar image of the strictly clean batch.

    Args:
      model: the model.
      state: state of one network, which compares mean regions in evaluation mode.
      noisy: batch of noisy pairs.
      strict: batch of strictly clean pairs.

    Returns:
      The noisy batch with the new captions, and the cosine of each image with the image that its
      caption comes from, `[B]`.
    """
    own, others = (base.mean_vectors(model, state, batch)[0] for batch in (noisy, strict))
    rows, cosines = purification.nearest(own, others)
    axis = model.axis_name
    if axis is not None:  # a device takes only the captions of its own images
        size = len(noisy.lengths)
        rows = jax.lax.dynamic_slice_in_dim(rows, jax.lax.axis_index(axis) * size, size)
    tokens, lengths = (parallel.global_rows(x, axis)[rows] for x in (strict.tokens, strict.lengths))
    return noisy._replace(tokens=tokens, lengths=lengths), cosines


def subsets(weight: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the pairs of each subset, by the probability that they are matched, `[N]`."""
    return {
        "strict": np.flatnonzero(weight > STRICTLY_CLEAN),
        "clean": np.flatnonzero((weight > CLEAN) & (weight <= STRICTLY_CLEAN)),
        "noisy": np.flatnonzero(weight <= CLEAN),
    }


def _subsets(plan: EpochPlan, weight: np.ndarray, own: np.ndarray) -> EpochPlan:
    """Add the three subsets and the label weights to the plan of a split."""
    streams = {name: rows for name, rows in subsets(weight).items() if len(rows)}
    return replace(plan, streams=streams, values={WEIGHT: weight})


def _update_strict(model, optimiser, tau: float, state: TrainState, batch):
    """Update a network on a strictly clean batch."""

    def loss_fn(params):
        (sims, images, captions), updated = model.apply(
            {"params": params, "batch_stats": state.batch_stats},
            batch,
            method=_score,
            rngs={"dropout": base.step_key(state, base.DROPOUT_A)},
            mutable=["batch_stats"],
        )
        terms = {
            "loss_info_nce": contrastive.info_nce(sims, tau=tau),
            "loss_symmetry": PENALTY * purification.symmetry(sims),
            "loss_structure": PENALTY * purification.structure(images, captions),
        }
        loss = sum(terms.values())
        return loss, (updated.get("batch_stats", {}), {"loss": loss, **terms})

    return base.descend(loss_fn, state, optimiser, model.axis_name)


def _score(model, batch):
    """Train-mode similarities and mean vectors, from one forward pass."""
    images, captions = model.encode(batch, True)
    sims = model.similarity_across_devices(images, captions, True)
    return sims, *model.mean_of_codes(images, captions)
