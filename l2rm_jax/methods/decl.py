"""DECL: turn similarities into evidence, and train mismatched pairs to have none.

Qin et al., "Deep Evidential Learning with Noisy Correspondence for Cross-modal Retrieval", ACM MM
2022, as in its authors' code. One network, no mixture. An epoch:

1. All pairs are scored in batches. A pair is matched if no other caption of its batch has more
   evidence for its image, both directions added. The warm-up calls all pairs matched.
2. Each step takes one batch of all pairs and makes one update, of the sum of two losses: the
   evidential loss, whose label is zero for mismatched pairs; and for matched pairs a triplet loss
   of the k hardest negatives. k falls with the number of steps, from the size of the batch to 5.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from l2rm_jax.losses import evidential, ranking
from l2rm_jax.methods import base
from l2rm_jax.methods.base import CALLED_MATCHED, EpochPlan, Method, TrainState
from l2rm_jax.methods.pair_values import read_pair_values
from l2rm_jax.methods.registry import register_method
from l2rm_jax.methods.split import call_matched, plan_sides, warmup_pairs

FEWEST_NEGATIVES = 5
NEGATIVES_PER_STEP = 0.025  # decrease of the number of negatives per step


def make(model, config) -> Method:
    """Make DECL for this model."""
    optimiser = base.model_optimiser(config)
    score = partial(_call_matched, model, config)  # one function: compiled once

    def plan(score_pairs, dataset, epoch: int) -> EpochPlan:
        if epoch < config.train.warmup_epochs:
            return EpochPlan({"pairs": warmup_pairs(config.split.by, dataset)})
        everything = np.arange(len(dataset))
        if config.split.by == "judgement":
            probability = dataset.posterior
            called = call_matched(probability)
        else:
            called = score_pairs(score)
            probability = np.where(called, 0.0, 1.0)  # there is no posterior
        report = plan_sides(called, probability, dataset.matched).report
        return EpochPlan({"pairs": everything}, report, values={CALLED_MATCHED: called})

    def step(state: TrainState, batch: dict) -> tuple[TrainState, dict]:
        def loss_fn(params):
            key = base.step_key(state, base.DROPOUT_A)
            sims, stats = base.forward(model, params, state.batch_stats, batch["pairs"], key)
            matched = read_pair_values(state, CALLED_MATCHED, batch["pairs"], model.axis_name)
            loss, metrics = _loss(model, config, sims, matched, state.step)
            return loss, (stats, {"loss": loss, **metrics})

        return base.gradient_step(loss_fn, state, optimiser, model.axis_name)

    return Method(
        init=lambda key, batch: base.init_state(model, optimiser, key, batch),
        plan=plan,
        step=step,
        pair_values={CALLED_MATCHED: 1.0},
        splits=True,
    )


register_method("decl", make)


def negatives(step: Int[Array, ""], batch_size: int) -> Int[Array, ""]:
    """Number of hardest negatives in a step; steps count from 1 and include the warm-up."""
    fallen = jnp.floor(batch_size - NEGATIVES_PER_STEP * step.astype(jnp.float32)).astype(jnp.int32)
    return jnp.maximum(fallen, FEWEST_NEGATIVES)


def _loss(model, config, sims: Array, matched: Array, step: Array) -> tuple[Array, dict]:
    evidence = model.bounded(sims)
    edl = evidential.evidential_loss(evidence, matched, tau=config.decl.tau)
    k = negatives(step + 1, len(sims))
    hinges = ranking.hardest_k(evidence, k, margin=config.loss.margin)
    triplet = config.decl.triplet_weight * jnp.sum(matched * hinges)
    return edl + triplet, {"loss_evidential": edl, "loss_triplet": triplet}


def _call_matched(model, config, state: TrainState, batch) -> Bool[Array, " B"]:
    evidence = model.bounded(base.evaluate(model, state, batch))
    return evidential.called_matched(evidence, tau=config.decl.tau)
