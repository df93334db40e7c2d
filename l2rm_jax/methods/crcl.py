"""CRCL: per-pair labels weight two losses and survive each re-initialisation of the network.

Qin et al., "Cross-modal Active Complementary Learning with Self-refining Correspondence", NeurIPS
2023, as in its authors' code. One network, no split. Each pair keeps a label in [0, 1], at first 1:

1. A step takes one batch of all pairs and makes one update of the active complementary loss: the
   label weighs InfoNCE against a loss that uses only the negatives.
2. After the warm-up epochs of a schedule, a label becomes 0.8 of itself and 0.2 of the probability
   that the step gives the pair, and 0 if that is below 0.1. In the last warm-up epoch of the first
   schedule, it becomes that probability.
3. Training is several schedules. Each starts with a fresh network and optimiser; labels are kept.

The best epoch by validation is chosen among all schedules, not only the last, as the authors do.
The earlier ones are too short to win.
"""

import itertools
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from l2rm_jax.errors import ConfigError
from l2rm_jax.losses import complementary, contrastive
from l2rm_jax.methods import base
from l2rm_jax.methods.base import FRESH, LAST, EpochPlan, Method, TrainState
from l2rm_jax.methods.pair_values import read_pair_values, write_pair_values
from l2rm_jax.methods.registry import register_method

LABEL = "label"  # the number that the state keeps for each pair


def make(model, config) -> Method:
    """Make CRCL for this model.

    Raises:
      ConfigError: a schedule of `crcl.schedules` has no epoch.
    """
    warmup, tau = config.train.warmup_epochs, config.loss.tau
    lengths = [warmup + epochs for epochs in (*config.crcl.schedules, config.train.epochs)]
    if min(config.crcl.schedules, default=1) < 1:
        raise ConfigError(
            f"crcl.schedules: found {tuple(config.crcl.schedules)}, expected epoch counts >= 1"
        )
    if config.optim.schedule == base.COSINE:
        raise ConfigError(
            f"optim.schedule: found {base.COSINE!r}, expected {base.STEP!r} with method=crcl, "
            "whose schedules differ in length"
        )
    starts = (0, *itertools.accumulate(lengths[:-1]))
    optimiser = base.model_optimiser(config, starts)

    def plan(score_pairs, dataset, epoch: int) -> EpochPlan:
        stream = "warmup" if epoch < warmup else "pairs"
        return EpochPlan({stream: np.arange(len(dataset))})

    def step(state: TrainState, batch: dict) -> tuple[TrainState, dict]:
        [pairs] = batch.values()
        stored = read_pair_values(state, LABEL, pairs, model.axis_name)
        since = base.epochs_since(state.epoch, starts)

        def loss_fn(params):
            key = base.step_key(state, base.DROPOUT_A)
            sims, stats = base.forward(model, params, state.batch_stats, pairs, key)
            probability = contrastive.pair_probabilities(sims, tau=tau)
            labels = complementary.refined_labels(stored, probability, warm=since < warmup)
            active, negative = complementary.active_complementary(sims, labels, tau=tau)
            loss = active + complementary.NEGATIVE_WEIGHT * negative
            # The probabilities after the first warm-up are the first labels other than 1.
            kept = jnp.where(state.epoch == warmup - 1, probability, labels)
            metrics = {"loss": loss, "loss_active": active, "loss_negative": negative}
            return loss, (stats, {**metrics, "mean_label": jnp.mean(labels), LABEL: kept})

        state, metrics = base.gradient_step(loss_fn, state, optimiser, model.axis_name)
        kept = metrics.pop(LABEL)
        return write_pair_values(state, LABEL, pairs, kept, model.axis_name), metrics

    return Method(
        init=lambda key, batch: base.init_state(model, optimiser, key, batch),
        plan=plan,
        step=step,
        epochs=sum(lengths),
        begin=lambda epoch: FRESH if epoch in starts[1:] else LAST,
        pair_values={LABEL: 1.0},
        losses={"warmup": ("loss", partial(first_loss, tau=tau))},
    )


register_method("crcl", make)


def first_loss(sims: Float[Array, "B B"], *, tau: float) -> Float[Array, ""]:
    """The loss while all labels are 1."""
    active, negative = complementary.active_complementary(sims, jnp.ones(len(sims)), tau=tau)
    return active + complementary.NEGATIVE_WEIGHT * negative
