"""IN2R without its refiner: mismatched pairs train towards the mean of their matched neighbours.

Liu et al., "Intra-Modal Neighbors Never Lie: Rectifying Inter-Modal Noisy Correspondence via
Graph-Based Intra-Modal Reasoning", ICML 2026, as in its authors' code. `co_teaching.py` has the
loop; both networks start from the same weights.

1. The warm-up trains InfoNCE with reverse cross entropy on all pairs: of the similarities, and also
   of the images among each other and of the captions among each other. There, the two items of a
   pair are the vectors of one sample in two passes, which differ in dropout.
2. Then a Gaussian mixture splits the losses of each network, and the other network trains on the
   two sides, with one update for both:
   - matched pairs: the same three terms, by the triplet loss of the hardest negatives. The vectors
     of the pairs that the peer trusts most join the network's queue.
   - mismatched pairs: each image is paired with the mean caption of the `in2r.neighbours` images
     of the peer's queue that are nearest to it, and each caption likewise. The loss is the one of
     the warm-up, halved for each direction.

The authors refine the neighbours by a learned attention before they take the mean.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from l2rm_jax import mixture
from l2rm_jax.errors import ConfigError
from l2rm_jax.losses import contrastive, ranking
from l2rm_jax.losses.rectification import append, nearest_mean
from l2rm_jax.methods import base
from l2rm_jax.methods.base import EpochPlan, Method, TrainState
from l2rm_jax.methods.co_teaching import CoTeaching, Loss, make_co_teaching
from l2rm_jax.methods.networks import by_network, stack_states
from l2rm_jax.methods.pair_values import read_pair_values
from l2rm_jax.methods.registry import register_method
from l2rm_jax.methods.split import split_pairs

MARGIN_WITHIN = 0.3  # of the triplet losses of images and of captions among each other
RECTIFIED = 0.5  # weight of the loss of each direction of the mismatched pairs
TRUSTED = "trusted"  # of `Method.pair_values`: 1 for pairs whose vectors join the queue


def make(model, config) -> Method:
    """Make IN2R for this model.

    Raises:
      ConfigError: the queue is shorter than a batch or the number of neighbours.
    """
    _check_queue(config)
    optimiser, margin = base.model_optimiser(config), config.loss.margin
    robust = partial(contrastive.robust_info_nce, tau=config.loss.tau)
    hardest = partial(ranking.triplet_hardest, margin=margin)
    within = partial(ranking.triplet_hardest, margin=MARGIN_WITHIN)
    losses = {"warmup": (robust, robust), "matched": (hardest, within)}

    def update(own: TrainState, peer: TrainState, batches: dict) -> tuple[TrainState, dict]:
        scorer = model.clone(sparse_gradient="matched" in batches)

        def loss_fn(params):
            seen, updated = scorer.apply(
                {"params": params, "batch_stats": own.batch_stats},
                batches,
                method=_views,
                rngs={"dropout": base.step_key(own, base.DROPOUT_A)},
                mutable=["batch_stats"],
            )
            terms = {}
            for stream in (name for name in losses if name in seen):
                terms |= _losses_of_views(*losses[stream], *seen[stream])
            if "mismatched" in seen:
                k = config.in2r.neighbours
                terms |= _rectified_losses(robust, *seen["mismatched"], peer.own, k)
            loss = sum(terms.values())
            metrics = {"loss": loss, **terms, "seen": seen.get("matched")}
            return loss, (updated.get("batch_stats", {}), metrics)

        own, metrics = base.descend(loss_fn, own, optimiser, model.axis_name)
        if matched := metrics.pop("seen"):
            trusted = read_pair_values(own, TRUSTED, batches["matched"], model.axis_name) > 0
            own = own.replace(own={**own.own, **_appended(own.own, *matched[1], trusted)})
        return own, metrics

    parts = CoTeaching(
        warmup_loss=None,
        pair_losses=partial(base.pair_losses, model, margin),
        split=partial(
            split_pairs,
            fit=mixture.fit_gaussian,
            call=lambda mismatched_posterior: mixture.above_threshold(1 - mismatched_posterior),
        ),
        subsets=mark_trusted,
        update=update,
        streams={"matched": 1, "mismatched": 1},
        pair_values={TRUSTED: 0.0},
    )
    method = make_co_teaching(model, config, optimiser, parts)

    def init(key: Array, batch: Any) -> TrainState:
        state = base.init_state(model, optimiser, key, batch)
        state = state.replace(own=_empty_queue(model, state, batch, config.in2r.queue_length))
        return state if method.networks == 1 else stack_states([state] * method.networks)

    of_warmup = by_network([{"warmup": ("loss_pairs", robust)}] * method.networks)
    return replace(method, init=init, losses=of_warmup)


register_method("in2r", make)


def mark_trusted(plan: EpochPlan, weight: np.ndarray, own: np.ndarray) -> EpochPlan:
    """Add the pairs whose vectors join the queue to the plan of the peer's split.

    Args:
      plan: the peer's split.
      weight: probability of being matched by the peer, `[N]`. A pair is trusted if it is above the
        mean of the network's own probabilities over the pairs that it calls matched itself.
      own: probability of being matched by the network itself, `[N]`.
    """
    called_matched = own[mixture.above_threshold(own)]
    least = called_matched.mean() if len(called_matched) else 0.0
    return replace(plan, values={TRUSTED: weight > least})


def _views(model, batches: Mapping[str, Any]) -> dict[str, tuple]:
    """Encode the batches of a step in training mode.

    Args:
      model: the model, inside `apply`.
      batches: by stream.

    Returns:
      By stream, for the global batch: of mismatched pairs, unit vectors of images and of captions,
      `[B, D]`; of others, similarities `[B, B]` and two pairs of such vectors, of two passes.
    """
    seen = {}
    for stream in (name for name in ("warmup", "matched") if name in batches):
        codes = model.encode(batches[stream], True)
        sims = model.similarity_across_devices(*codes, True)
        again = model.encode(batches[stream], True)
        vectors = (base.unit_vectors(model, *each) for each in (codes, again))
        seen[stream] = (sims, *vectors)
    if "mismatched" in batches:
        seen["mismatched"] = base.unit_vectors(model, *model.encode(batches["mismatched"], True))
    return seen


def _losses_of_views(
    of_pairs: Loss, within: Loss, sims: Float[Array, "B B"], first: tuple, second: tuple
) -> dict[str, Float[Array, ""]]:
    """Losses of the similarities, and of the images and of the captions among each other."""
    images, captions = (within(x @ y.T) for x, y in zip(first, second, strict=True))
    return {"loss_pairs": of_pairs(sims), "loss_images": images, "loss_captions": captions}


def _rectified_losses(
    loss: Loss,
    images: Float[Array, "B D"],
    captions: Float[Array, "B D"],
    queue: Mapping[str, Array],
    k: int,
) -> dict[str, Float[Array, ""]]:
    """Losses of images and of captions with their means of the queue; 0 until it holds k pairs."""
    mean: Callable = partial(nearest_mean, count=queue["count"], k=k)
    weight = jnp.where(queue["count"] >= k, RECTIFIED, 0.0)
    for_images = mean(images, queue["images"], queue["captions"])
    for_captions = mean(captions, queue["captions"], queue["images"])
    return {
        "loss_rectified_captions": weight * loss(images @ for_images.T),
        "loss_rectified_images": weight * loss(captions @ for_captions.T),
    }


def _appended(
    queue: Mapping[str, Array],
    images: Float[Array, "B D"],
    captions: Float[Array, "B D"],
    chosen: Bool[Array, " B"],
) -> dict[str, Array]:
    """Append the vectors of the chosen pairs to the queue."""
    kept, count = append(queue["images"], queue["count"], images, chosen)
    return {
        "images": kept,
        "captions": append(queue["captions"], queue["count"], captions, chosen)[0],
        "count": count,
    }


def _empty_queue(model, state: TrainState, batch: Any, length: int) -> dict[str, Array]:
    """Queue without pairs, with vectors of the model's size."""
    local = model.clone(axis_name=None)
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    vectors = partial(local.apply, method=lambda m, x: base.unit_vectors(m, *m.encode(x)))
    images, captions = jax.eval_shape(vectors, variables, jax.tree.map(lambda x: x[:2], batch))
    return {
        "images": jnp.zeros((length, images.shape[1])),
        "captions": jnp.zeros((length, captions.shape[1])),
        "count": jnp.zeros((), jnp.int32),
    }


def _check_queue(config) -> None:
    length, settings = config.in2r.queue_length, config.in2r
    least = max(config.train.batch_size, settings.neighbours)
    if length < least:
        raise ConfigError(
            f"in2r.queue_length: found {length}, expected at least {least}, the larger of "
            f"train.batch_size={config.train.batch_size} and in2r.neighbours={settings.neighbours}"
        )
