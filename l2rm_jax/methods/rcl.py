"""RCL: learn only from negatives, with complementary losses.

Hu et al., "Cross-Modal Retrieval with Partially Mismatched Pairs", TPAMI 2023. Every epoch trains
on all pairs. The loss uses only the negatives of a batch, which are nearly always right, so the
method does not need to know which of the stored pairs are mismatched.
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
    """Make RCL for this model.

    Raises:
      ConfigError: `config.rcl.loss` is unknown, or a number in `config.rcl` is out of range.
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

    # The loss of equal similarities does not depend on which negatives are drawn. The bound "exp"
    # is left out: even a perfect model is only a few percent below its flat loss.
    loss_any_draw = partial(loss, key=jax.random.key(0))
    return Method(
        init=lambda key, batch: init_state(model, optimiser, key, batch),
        plan=lambda score_pairs, dataset, epoch: EpochPlan({"pairs": np.arange(len(dataset))}),
        step=step,
        losses={} if settings.loss == "exp" else {"pairs": ("loss", loss_any_draw)},
    )


register_method("rcl", make)


def _check_numbers(settings, batch_size: int) -> None:
    messages = []
    if not 0 < settings.q <= 1:
        messages.append(f"rcl.q: found {settings.q}, expected more than 0 and at most 1")
    if not 0 <= settings.negatives < batch_size:
        messages.append(
            f"rcl.negatives: found {settings.negatives}, expected 0 (all) to {batch_size - 1}, the "
            "number of negatives per image in a batch"
        )
    if messages:
        raise ConfigError(*messages)
