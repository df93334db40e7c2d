"""Baselines that trust every pair: triplet with hardest negatives, and InfoNCE."""

from collections.abc import Callable
from functools import partial

import numpy as np

from l2rm_jax.losses.contrastive import info_nce
from l2rm_jax.losses.ranking import triplet_hardest
from l2rm_jax.methods.base import EpochPlan, Method, init_state, model_optimiser, plain_step


def make_triplet(model, config) -> Method:
    """Triplet ranking loss with the hardest negatives of the batch (L2RM Eq. 2)."""
    return _make(model, config, partial(triplet_hardest, margin=config.loss.margin))


def make_info_nce(model, config) -> Method:
    """InfoNCE, both directions (L2RM Eq. 3)."""
    return _make(model, config, partial(info_nce, tau=config.loss.tau))


def _make(model, config, loss: Callable) -> Method:
    optimiser = model_optimiser(config)

    def plan(score_pairs, dataset, epoch):
        return EpochPlan({"all": np.arange(len(dataset))})

    def step(state, batch):
        return plain_step(model, loss, optimiser, state, batch["all"])

    return Method(
        init=lambda key, batch: init_state(model, optimiser, key, batch), plan=plan, step=step
    )
