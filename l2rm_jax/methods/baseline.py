"""Baselines that trust every pair: triplet loss with hardest negatives, InfoNCE, SigLIP's loss.

On semi-paired data they train only on the known pairs.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from l2rm_jax.losses.contrastive import info_nce
from l2rm_jax.losses.ranking import triplet_hardest, triplet_mean
from l2rm_jax.methods import learned_scale, pair_weights
from l2rm_jax.methods.base import EpochPlan, Method, init_state, model_optimiser, plain_step
from l2rm_jax.methods.registry import register_method


def make_triplet(model, config) -> Method:
    """Triplet ranking loss with the hardest negatives of the batch (L2RM Eq. 2).

    The warm-up epochs average over all negatives instead. A model that starts with the hardest
    negatives stays for a long time, often forever, at the loss of equal similarities.
    """
    margin = config.loss.margin
    losses = {
        "warmup": partial(triplet_mean, margin=margin),
        "pairs": partial(triplet_hardest, margin=margin),
    }
    return _make(model, config, losses, hardest=("pairs",))


def make_info_nce(model, config) -> Method:
    """InfoNCE in both directions (L2RM Eq. 3), in all epochs."""
    if config.loss.learn_scale:
        return learned_scale.make_info_nce(model, config)
    loss = partial(info_nce, tau=config.loss.tau)
    return _make(model, config, {"warmup": loss, "pairs": loss})


register_method("triplet", make_triplet)
register_method("infonce", make_info_nce)
register_method("sigmoid", learned_scale.make_sigmoid)


def _make(model, config, losses: dict[str, Callable], hardest: tuple[str, ...] = ()) -> Method:
    """Make a method that trains on the same pairs in every epoch.

    Args:
      model: the model.
      config: config of the run.
      losses: the loss of each stream, of similarities and `weights`: "warmup" in the warm-up
        epochs, then "pairs".
      hardest: streams whose loss uses only the hardest negatives, so that most similarities have
        no gradient.
    """
    optimiser, settings = model_optimiser(config), config.train
    pair_values = pair_weights.pair_values(settings)

    def plan(score_pairs, dataset, epoch):
        stream = "warmup" if epoch < settings.warmup_epochs else "pairs"
        values = pair_weights.plan_scores(settings, model, score_pairs, dataset, epoch)
        return EpochPlan({stream: np.flatnonzero(dataset.paired)}, values=values)

    def step(state, batch):
        [(stream, pairs)] = batch.items()
        scorer = model.clone(sparse_gradient=stream in hardest)
        weights = pair_weights.batch_weights(settings, state, pairs, model.axis_name)
        loss = partial(losses[stream], weights=weights)
        return plain_step(scorer, loss, optimiser, state, pairs)

    return Method(
        init=lambda key, batch: init_state(model, optimiser, key, batch),
        plan=plan,
        step=step,
        pair_values=pair_values,
        # With weights, a loss below the one of equal similarities shows nothing.
        losses={} if pair_values else {stream: ("loss", loss) for stream, loss in losses.items()},
    )
