"""Contrastive losses whose temperature is a parameter: InfoNCE as CLIP has it, and SigLIP's loss.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021,
section 2.3; Zhai et al., "Sigmoid Loss for Language Image Pre-Training", ICCV 2023, Algorithm 1.

`baseline` registers both. The parameters form the group `loss` next to the model's groups, and are
saved in its checkpoints. A run that starts from the cosines of a CLIP or SigLIP also starts from
its scale (`run/pretrained.py`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from l2rm_jax.losses.contrastive import info_nce, sigmoid_contrastive
from l2rm_jax.methods import base, pair_weights
from l2rm_jax.methods.base import EpochPlan, Method

Weights = float | Float[Array, " B"]
GROUP = "loss"
MAX_SCALE = 100.0  # as in CLIP; SigLIP has no limit
START_SCALE, START_BIAS = 10.0, -10.0  # SigLIP, section 3.2


def make_info_nce(model: Any, config: Any) -> Method:
    """InfoNCE in both directions; its temperature starts at `loss.tau` and is learned."""

    def loss(sims: Array, learned: dict[str, Array], weights: Weights) -> Array:
        return info_nce(sims, tau=1 / _scale(learned, MAX_SCALE), weights=weights)

    start = {"log_scale": math.log(1 / config.loss.tau)}
    # Equal similarities have the same loss at every temperature.
    flat = partial(info_nce, tau=config.loss.tau)
    return _make(model, config, loss, start, {"pairs": ("loss", flat)}, MAX_SCALE)


def make_sigmoid(model: Any, config: Any) -> Method:
    """SigLIP's loss: classify each image-caption combination independently, in all epochs."""

    def loss(sims: Array, learned: dict[str, Array], weights: Weights) -> Array:
        scale, bias = _scale(learned), learned["bias"]
        return sigmoid_contrastive(sims, scale=scale, bias=bias, weights=weights)

    start = {"log_scale": math.log(START_SCALE), "bias": START_BIAS}
    return _make(model, config, loss, start, {})


def _scale(learned: dict[str, Array], most: float = np.inf) -> Float[Array, ""]:
    """Scale, at most `most`, with the gradient of the exponential even at the limit."""
    return jnp.exp(_limited(learned, most)["log_scale"])


def _limited(learned: dict[str, Array], most: float) -> dict[str, Array]:
    """Clip the scale among the learned numbers to its limit."""
    excess = jnp.maximum(learned["log_scale"] - math.log(most), 0.0)
    return {**learned, "log_scale": learned["log_scale"] - jax.lax.stop_gradient(excess)}


def _make(
    model: Any,
    config: Any,
    loss: Callable[[Array, dict[str, Array], Weights], Array],
    start: dict[str, float],
    losses: dict[str, tuple[str, Callable]],
    most: float = np.inf,
) -> Method:
    """Make a method that trains on the same pairs in every epoch.

    Args:
      model: the model.
      config: config of the run.
      loss: the loss of similarities, the learned numbers and the weights of the pairs.
      start: the learned numbers before the first step.
      losses: as in `Method`.
      most: limit of the scale.
    """
    optimiser, settings = base.model_optimiser(config), config.train
    pair_values = pair_weights.pair_values(settings)
    extra = {GROUP: {name: jnp.float32(value) for name, value in start.items()}}

    def plan(score_pairs: Callable, dataset: Any, epoch: int) -> EpochPlan:
        values = pair_weights.plan_scores(settings, model, score_pairs, dataset, epoch)
        return EpochPlan({"pairs": np.flatnonzero(dataset.paired)}, values=values)

    def step(state: base.TrainState, batch: dict) -> tuple[base.TrainState, dict]:
        [pairs] = batch.values()
        weights = pair_weights.batch_weights(settings, state, pairs, model.axis_name)

        def loss_fn(params: Any) -> tuple[Array, tuple[Any, dict]]:
            key = base.step_key(state, base.DROPOUT_A)
            sims, stats = base.forward(model, params, state.batch_stats, pairs, key)
            value = loss(sims, params[GROUP], weights)
            return value, (stats, {"loss": value, "scale": _scale(params[GROUP], most)})

        state, metrics = base.gradient_step(loss_fn, state, optimiser, model.axis_name)
        learned = _limited(state.params[GROUP], most)
        return state.replace(params={**state.params, GROUP: learned}), metrics

    return Method(
        init=lambda key, batch: base.init_state(model, optimiser, key, batch, extra=extra),
        plan=plan,
        step=step,
        pair_values=pair_values,
        losses={} if pair_values else losses,
    )
