"""What every method has in common: the state, the contract with the loop, one optimiser update."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from l2rm_jax.devices import parallel
from l2rm_jax.models.retrieval import RetrievalModel

# Streams for keys of their own: adding a use of randomness does not disturb the others.
INIT, DROPOUT_A, DROPOUT_B, RESERVE, NEGATIVES = range(5)


class TrainState(flax.struct.PyTreeNode):
    """Everything that a resumed run needs from the device."""

    step: Int[Array, ""]  # optimiser updates so far
    epoch: Int[Array, ""]  # of the running epoch, warm-up included; sets the learning rate
    params: Any
    batch_stats: Any
    opt_state: Any
    own: Any  # what only the method knows (L2RM: the learned cost and its optimiser)
    key: Array  # the run's PRNG key; never split, only folded with the step


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """What an epoch trains on.

    Attributes:
      streams: rows of pairs by stream name, in one of the forms that `data.batches.TrainStream`
        takes. An epoch is one pass over the first stream; the others restart, reshuffled, when
        they are exhausted.
      report: numbers to log with the epoch.
      warnings: what a person should know, by the name of the sign (see `l2rm_jax.run.health`).
    """

    streams: dict[str, np.ndarray]
    report: dict[str, float] = dataclasses.field(default_factory=dict)
    warnings: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Method:
    """What the loop knows of a method: three functions, its streams, and its losses.

    Attributes:
      init: `(key, batch) -> TrainState`; the batch only lends its shapes.
      plan: `(score_pairs, dataset, epoch) -> EpochPlan`, on the host. `score_pairs(score)` maps
        `score(state, batch) -> [B, ...]`, or a tree of such arrays, over all training pairs, each
        exactly once, and returns the values in the order of the pairs.
      step: `(state, {stream: batch}) -> (state, metrics)`, pure, traced once per set of shapes.
      streams: names of the streams that a step after the warm-up takes, and how many batches it
        takes of each.
      losses: by stream, the metric that holds the loss of its similarities, and that loss,
        `[B, B] -> scalar`: a metric that stays where the loss of equal similarities is has
        learned nothing.
    """

    init: Callable[[Array, Any], TrainState]
    plan: Callable[[Callable, Any, int], EpochPlan]
    step: Callable[[TrainState, dict], tuple[TrainState, dict]]
    streams: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"pairs": 1})
    losses: Mapping[str, tuple[str, Callable]] = dataclasses.field(default_factory=dict)


def forward(
    model: RetrievalModel,
    params: Any,
    batch_stats: Any,
    batch: Any,
    key: Array,
) -> tuple[Float[Array, "I J"], Any]:
    """Train-mode similarities of the global batch and the updated batch statistics."""
    sims, updated = model.apply(
        {"params": params, "batch_stats": batch_stats},
        batch.images,
        batch.tokens,
        batch.lengths,
        batch.regions,
        train=True,
        method="global_similarity",
        rngs={"dropout": key},
        mutable=["batch_stats"],
    )
    return sims, updated.get("batch_stats", {})  # not every head has any


def evaluate(model: RetrievalModel, state: TrainState, batch: Any) -> Float[Array, "I J"]:
    """Eval-mode similarities of the global batch."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    inputs = (batch.images, batch.tokens, batch.lengths, batch.regions)
    return model.apply(variables, *inputs, method="global_similarity")


def step_key(state: TrainState, use: int) -> Array:
    return jax.random.fold_in(jax.random.fold_in(state.key, use), state.step)


@dataclasses.dataclass(frozen=True)
class Optimiser:
    """AdamW behind a global-norm clip, with the reference's step-wise decay of the rate.

    The rate is divided by 10 every `decay_epochs` epochs, counted after the warm-up
    (L2RM suppl. Tab. 1, "update learning rate").
    """

    learning_rate: float
    decay_epochs: int
    warmup_epochs: int
    grad_clip: float = np.inf
    weight_decay: float = 0.0

    def _chain(self) -> optax.GradientTransformation:
        clip = optax.clip_by_global_norm(self.grad_clip)
        return (
            optax.chain(clip, optax.scale_by_adam())
            if np.isfinite(self.grad_clip)
            else (optax.scale_by_adam())
        )

    def init(self, params: Any) -> Any:
        return self._chain().init(params)

    def rate(self, epoch: Int[Array, ""]) -> Float[Array, ""]:
        decays = jnp.maximum(epoch - self.warmup_epochs, 0) // self.decay_epochs
        return self.learning_rate * 0.1**decays

    def update(self, grads: Any, opt_state: Any, params: Any, epoch: Array) -> tuple[Any, Any]:
        updates, opt_state = self._chain().update(grads, opt_state, params)
        rate = self.rate(epoch)
        params = jax.tree.map(lambda p, u: p - rate * (u + self.weight_decay * p), params, updates)
        return params, opt_state


def model_optimiser(config) -> Optimiser:
    return Optimiser(
        learning_rate=config.optim.learning_rate,
        decay_epochs=config.optim.decay_epochs,
        warmup_epochs=config.train.warmup_epochs,
        grad_clip=config.optim.grad_clip,
        weight_decay=config.optim.weight_decay,
    )


def init_state(
    model: RetrievalModel, optimiser: Optimiser, key: Array, batch: Any, own: Any = ()
) -> TrainState:
    # Collectives need a mapped axis, and parameters do not depend on it.
    local = model.clone(axis_name=None)
    init = jax.jit(local.init)
    key_init = jax.random.fold_in(key, INIT)
    variables = init(key_init, batch.images[:2], batch.tokens[:2], batch.lengths[:2])
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        epoch=jnp.zeros((), jnp.int32),
        params=variables["params"],
        batch_stats=variables.get("batch_stats", {}),
        opt_state=optimiser.init(variables["params"]),
        own=own,
        key=key,
    )


def descend(
    loss_fn: Callable, state: TrainState, optimiser: Optimiser, axis_name: str | None
) -> tuple[TrainState, dict]:
    """One update from `loss_fn(params) -> (loss, (batch_stats, metrics))`."""
    grads, (batch_stats, metrics) = jax.grad(loss_fn, has_aux=True)(state.params)
    grads = parallel.device_mean(grads, axis_name)
    params, opt_state = optimiser.update(grads, state.opt_state, state.params, state.epoch)
    metrics = {**metrics, "grad_norm": optax.tree.norm(grads)}
    state = state.replace(
        step=state.step + 1, params=params, batch_stats=batch_stats, opt_state=opt_state
    )
    return state, metrics


def skip_non_finite(step: Callable) -> Callable:
    """`step` without its update where a metric (loss, gradient norm, ...) is not finite.

    Only the count of steps then moves on, and with it the randomness of the next one.
    """

    def guarded_step(state: TrainState, batch: Any) -> tuple[TrainState, dict]:
        new, metrics = step(state, batch)
        finite = jnp.all(jnp.isfinite(jnp.stack(jax.tree.leaves(metrics))))
        kept = state.replace(step=new.step)
        return jax.tree.map(lambda x, old: jnp.where(finite, x, old), new, kept), metrics

    return guarded_step


def plain_step(
    model: RetrievalModel,
    loss: Callable[[Float[Array, "B B"]], Float[Array, ""]],
    optimiser: Optimiser,
    state: TrainState,
    batch: Any,
) -> tuple[TrainState, dict]:
    """One update on one batch of pairs that are all trusted."""

    def loss_fn(params):
        key = step_key(state, DROPOUT_A)
        sims, stats = forward(model, params, state.batch_stats, batch, key)
        value = loss(sims)
        return value, (stats, {"loss": value})

    return descend(loss_fn, state, optimiser, model.axis_name)
