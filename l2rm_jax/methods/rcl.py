"""RCL: learn from what a pair is not.

Hu et al., "Cross-Modal Retrieval with Partially Mismatched Pairs", TPAMI 2023. Every pair is
trained on in every epoch, and only the wrong pairs of a batch teach: nothing has to find out
which of the stored pairs are mismatched.
"""

from functools import partial

import jax
import numpy as np

from l2rm_jax.errors import ConfigError, Problems, check_names
from l2rm_jax.losses.complementary import BOUNDS, complementary_contrastive, draw_negatives
from l2rm_jax.methods.base import (
    NEGATIVES,
    EpochPlan,
    Method,
    init_state,
    model_optimiser,
    plain_step,
    step_key,
)
from l2rm_jax.methods.registry import register_method


def make(model, config) -> Method:
    """RCL for this model.

    Raises:
      ConfigError: fields of `config.rcl` are unknown or out of range.
    """
    settings, size = config.rcl, config.train.batch_size
    problems = Problems()
    problems.attempt(check_names, "rcl", settings, {"loss": BOUNDS})
    problems.attempt(_check_numbers, settings, size)
    problems.raise_all()
    optimiser = model_optimiser(config)
    all_negatives = partial(
        complementary_contrastive, tau=config.loss.tau, bound=settings.loss, q=settings.q
    )

    def loss(sims, key):
        if not settings.negatives:
            return all_negatives(sims)
        return all_negatives(sims, negatives=draw_negatives(key, len(sims), settings.negatives))

    def step(state, batch):
        key = step_key(state, NEGATIVES)
        return plain_step(model, partial(loss, key=key), optimiser, state, batch["pairs"])

    # Of equal similarities, whose loss is the same at every draw. That of exp says nothing: even a
    # perfect model is only some percent below it.
    at_any_draw = partial(loss, key=jax.random.key(0))
    return Method(
        init=lambda key, batch: init_state(model, optimiser, key, batch),
        plan=lambda score_pairs, dataset, epoch: EpochPlan({"pairs": np.arange(len(dataset))}),
        step=step,
        losses={} if settings.loss == "exp" else {"pairs": ("loss", at_any_draw)},
    )


register_method("rcl", make)


def _check_numbers(settings, batch_size: int) -> None:
    wrong = []
    if not 0 < settings.q <= 1:
        wrong.append(f"rcl.q: {settings.q}, expected more than 0 and at most 1")
    if not 0 <= settings.negatives < batch_size:
        wrong.append(
            f"rcl.negatives: {settings.negatives}, expected 0 (all) to {batch_size - 1}, the wrong "
            "captions of an image in a batch"
        )
    if wrong:
        raise ConfigError(*wrong)
