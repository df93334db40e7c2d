"""Baselines that trust every pair: triplet with hardest negatives, and InfoNCE.

Of semi-paired data they take the paired part alone.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from l2rm_jax.losses.contrastive import info_nce
from l2rm_jax.losses.ranking import triplet_hardest, triplet_mean
from l2rm_jax.methods.base import EpochPlan, Method, init_state, model_optimiser, plain_step
from l2rm_jax.methods.registry import register_method


def make_triplet(model, config) -> Method:
    """Triplet ranking loss with the hardest negatives of the batch (L2RM Eq. 2).

    The warm-up epochs take all negatives instead: started with the hardest ones, a model of this
    kind stays for long at the loss where all similarities are equal, often for good.
    """
    margin = config.loss.margin
    losses = {
        "warmup": partial(triplet_mean, margin=margin),
        "pairs": partial(triplet_hardest, margin=margin),
    }
    return _make(model, config, losses, hardest=("pairs",))


def make_info_nce(model, config) -> Method:
    """InfoNCE, both directions (L2RM Eq. 3), from the first epoch to the last."""
    loss = partial(info_nce, tau=config.loss.tau)
    return _make(model, config, {"warmup": loss, "pairs": loss})


register_method("triplet", make_triplet)
register_method("infonce", make_info_nce)


def _make(model, config, losses: dict[str, Callable], hardest: tuple[str, ...] = ()) -> Method:
    """The same pairs in every epoch; the loss is the one of the epoch's stream. `hardest` names the
    streams whose loss looks at the hardest negatives alone."""
    optimiser = model_optimiser(config)

    def plan(score_pairs, dataset, epoch):
        stream = "warmup" if epoch < config.train.warmup_epochs else "pairs"
        return EpochPlan({stream: np.flatnonzero(dataset.paired)})

    def step(state, batch):
        [(stream, pairs)] = batch.items()
        scorer = model.clone(sparse_gradient=stream in hardest)
        return plain_step(scorer, losses[stream], optimiser, state, pairs)

    return Method(
        init=lambda key, batch: init_state(model, optimiser, key, batch),
        plan=plan,
        step=step,
        losses={stream: ("loss", loss) for stream, loss in losses.items()},
    )
