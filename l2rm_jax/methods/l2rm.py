"""L2RM: split off the mismatched pairs, rematch them by partial transport, learn from both.

Han et al., "Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval", CVPR 2024.
This file follows Algorithm 1 of the supplement.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.devices import parallel
from l2rm_jax.errors import check_names
from l2rm_jax.losses import contrastive, ranking, rematching
from l2rm_jax.methods import base
from l2rm_jax.methods.base import EpochPlan, Method, TrainState
from l2rm_jax.methods.cost import (
    MINIMUM,
    Reserved,
    cost,
    cost_loss,
    cost_statistics,
    draw_reserved,
    init_cost,
)
from l2rm_jax.methods.registry import register_method
from l2rm_jax.methods.split import split, warmup_pairs
from l2rm_jax.methods.transport_warnings import transport_warnings
from l2rm_jax.ot import partial_sinkhorn

WARMUP_LOSSES = {
    "rce": contrastive.robust_info_nce,
    "infonce": contrastive.info_nce,
    "triplet": ranking.triplet_mean,
}
REMATCH_LOSSES = {
    "symmetric_kl": rematching.symmetric_kl,
    "kl": rematching.kl,
    "infonce": rematching.soft_info_nce,
    "js": rematching.jensen_shannon,
}
NAMES = {
    "warmup_loss": tuple(WARMUP_LOSSES),
    "rematch_loss": tuple(REMATCH_LOSSES),
    "cost": ("learned", "cosine"),
    "mask": ("diagonal", "same_image", "none"),
    "solver": ("converged", "l2rm"),
}


def make(model, config) -> Method:
    """Make L2RM for this model.

    Raises:
      ConfigError: a field of `config.l2rm` has a value that is not in `NAMES`.
    """
    settings = config.l2rm
    check_names("l2rm", settings, NAMES)
    warmup_loss = _warmup_loss(config)
    rematch_loss = partial(REMATCH_LOSSES[settings.rematch_loss], tau=config.loss.tau)
    optimiser = base.model_optimiser(config)
    cost_optimiser = base.Optimiser(
        settings.cost_learning_rate, config.optim.decay_epochs, (config.train.warmup_epochs,)
    )

    def init(key, batch) -> TrainState:
        params = init_cost(config.train.batch_size)
        own = {"cost": params, "cost_opt": cost_optimiser.init(params)}
        return base.init_state(model, optimiser, key, batch, own)

    score = partial(base.pair_losses, model, config.loss.margin)  # one function: compiled once

    def plan(score_pairs: Callable, dataset, epoch: int) -> EpochPlan:
        if epoch < config.train.warmup_epochs:
            return EpochPlan({"warmup": warmup_pairs(config.split.by, dataset)})
        return split(config.split.by, dataset, lambda: score_pairs(score))

    def step(state: TrainState, batch: dict, reserved: Reserved | None = None):
        """Make one update. If given, `reserved` replaces the random draw of pairs for the cost."""
        if "warmup" in batch:
            return base.plain_step(model, warmup_loss, optimiser, state, batch["warmup"])
        if "matched" in batch and settings.cost == "learned":
            state, cost_metrics = _update_cost(
                model, cost_optimiser, state, batch["matched"], reserved
            )
        else:
            cost_metrics = {}
        loss_fn = partial(_loss, model, config, rematch_loss, state, batch)
        state, metrics = base.gradient_step(loss_fn, state, optimiser, model.axis_name)
        return state, {**metrics, **cost_metrics}

    hardest = partial(ranking.triplet_hardest, margin=config.loss.margin)
    losses = {"warmup": ("loss", warmup_loss), "matched": ("loss_matched", hardest)}
    return Method(
        init=init,
        plan=plan,
        step=step,
        streams={"matched": 1, "mismatched": 1},
        losses=losses,
        splits=True,
        moves_mass=True,
        queue_length=settings.queue_length,
        warnings=partial(transport_warnings, cost=settings.cost, epsilon=settings.epsilon),
    )


register_method("l2rm", make)


def _warmup_loss(config) -> Callable:
    loss = WARMUP_LOSSES[config.l2rm.warmup_loss]
    if loss is ranking.triplet_mean:
        return partial(loss, margin=config.loss.margin)
    return partial(loss, tau=config.loss.tau)


def _update_cost(
    model, optimiser: base.Optimiser, state: TrainState, matched, reserved: Reserved | None
) -> tuple[TrainState, dict]:
    """Update the learned cost once, from reserved matched pairs scored in eval mode (Eq. 6)."""
    axis = model.axis_name
    size = state.own["cost"]["bias"].shape[0]
    if reserved is None:
        reserved = draw_reserved(base.step_key(state, base.RESERVE), size)
    images, regions = (
        parallel.select_rows(x, reserved.index, axis) for x in (matched.images, matched.regions)
    )
    sims = _score_replicated(model, state, matched._replace(images=images, regions=regions))
    loss, grads = jax.value_and_grad(cost_loss)(state.own["cost"], sims, reserved)
    params, opt_state = optimiser.update(
        grads, state.own["cost_opt"], state.own["cost"], state.epoch
    )
    own = {"cost": params, "cost_opt": opt_state}
    return state.replace(own=own), {"loss_cost": loss}


def _score_replicated(model, state: TrainState, batch) -> Float[Array, "K J"]:
    """Eval-mode similarities of images with all captions of the global batch.

    Every device holds all of these images, but only its own captions.
    """
    sims = base.evaluate(model.clone(axis_name=None), state, batch)
    if model.axis_name is None:
        return sims
    return jax.lax.all_gather(sims, model.axis_name, axis=1, tiled=True)


def _loss(model, config, rematch_loss: Callable, state: TrainState, batch: dict, params):
    """Triplet loss of the matched pairs plus rematching loss of the mismatched pairs (Eq. 11).

    A stream is missing if the split put no pair into it; it then adds nothing to the loss.
    """
    stats, loss, metrics = state.batch_stats, 0.0, {}
    if "matched" in batch:
        matched = batch["matched"]
        key = base.step_key(state, base.DROPOUT_A)
        scorer = model.clone(sparse_gradient=True)  # only hardest negatives count
        sims, stats = base.forward(scorer, params, stats, matched, key)
        value = ranking.triplet_hardest(sims, margin=config.loss.margin)
        loss, metrics = loss + value, {**metrics, "loss_matched": value}
    if "mismatched" in batch:
        mismatched = batch["mismatched"]
        key = base.step_key(state, base.DROPOUT_B)
        sims, stats = base.forward(model, params, stats, mismatched, key)
        plan, report = rematch(model, config.l2rm, state, params, stats, mismatched, sims, key)
        value = rematch_loss(sims, plan)
        loss, metrics = loss + value, {**metrics, "loss_rematch": value, **report}
    return loss, (stats, {"loss": loss, **metrics})


def rematch(
    model, settings, state: TrainState, params, stats, batch, sims: Float[Array, "Q B"], key
) -> tuple[Float[Array, "Q B"], dict]:
    """Rematch mismatched images and captions by partial transport (L2RM Eq. 9).

    Args:
      model: the model.
      settings: `config.l2rm`.
      state: training state with the learned cost.
      params: parameters of the model.
      stats: batch statistics of the model.
      batch: mismatched pairs. With a queue of images longer than the batch, Q > B images meet B
        captions. Each image and caption has the weight 1 / B, so `rho` is a share of the captions.
      sims: similarities of the global batch.
      key: PRNG key for dropout.

    Returns:
      The transport plan, the refined alignment of the paper, without gradient; and statistics of
      the transport and its costs to log.
    """
    if settings.cost == "learned":
        values = cost(state.own["cost"], jax.lax.stop_gradient(sims))
    else:
        variables = jax.lax.stop_gradient({"params": params, "batch_stats": stats})
        values = 1.0 - _cosines(model, variables, batch, key)
    values = jnp.maximum(values, MINIMUM)
    images, captions = values.shape
    result = partial_sinkhorn(
        values,
        settings.rho or share_of_batch(captions),
        epsilon=settings.epsilon,
        a=jnp.full((images,), 1.0 / captions),
        b=jnp.full((captions,), 1.0 / captions),
        mask=_mask(settings.mask, batch.image_index, batch.pair_index, model.axis_name),
        mode=settings.solver,
    )
    report = {
        "moved_mass": result.mass,
        "transport_iterations": result.iterations,
        "transport_converged": result.converged.astype(jnp.float32),
        **cost_statistics(values),
    }
    return jax.lax.stop_gradient(result.plan), report


def share_of_batch(captions: int) -> float:
    """Share of the mass to transport, by the number of captions in a batch; always below 1.

    With more captions in a batch, an image is likelier to meet one that fits it. L2RM
    (suppl. D.2) uses 0.05, 0.1 and 0.2 for batches of 64, 128 and 256. This function gives 0.05,
    0.10 and 0.19 for these sizes, 0.34 for 512 and 0.57 for 1024.
    """
    return 1.0 - 0.9 ** (captions / 128)


def _cosines(model, variables, batch, key) -> Float[Array, "Q B"]:
    """Train-mode cosines of mean regions with mean words."""
    cosines, _ = model.apply(
        variables, batch, method="global_cosine", rngs={"dropout": key}, mutable=["batch_stats"]
    )
    return cosines


def _mask(name: str, image_index: Array, pair_index: Array, axis_name: str | None):
    """Mask of the allowed rematches of images and captions, `[Q, B]`; None allows all.

    The first B images are paired with the B captions in the same order; older images of the queue
    follow. "diagonal" forbids an image's stored caption, "same_image" all captions of the image.
    """
    if name == "none":
        return None
    stored_with, pairs = (parallel.global_rows(x, axis_name) for x in (image_index, pair_index))
    captions = len(pairs)
    same_image = stored_with[:, None] == stored_with[None, :captions]
    if name == "same_image":
        return ~same_image
    # A stream smaller than a batch fills it with copies of its pairs.
    same_pair = pairs[:, None] == pairs[None]
    # The pairs of older images are unknown. But if the batch holds copies, the stream is smaller
    # than a batch, and an older image that is also in the batch belongs to a copy.
    older = same_image[captions:] & (jnp.sum(same_pair) > captions)
    return ~jnp.concatenate([same_pair, older])
