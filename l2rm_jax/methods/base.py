"""Code shared by all methods: training state, the `Method` interface, and optimiser updates."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from l2rm_jax.devices import parallel
from l2rm_jax.losses import ranking
from l2rm_jax.methods.optimiser import (  # noqa: F401 (methods import them from here)
    COSINE,
    STEP,
    Optimiser,
    epochs_since,
    model_optimiser,
)
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import l2_normalise, masked_mean
from l2rm_jax.models.retrieval import RetrievalModel

CALLED_MATCHED = "called_matched"  # of `Method.pair_values`

# Each use of random numbers has its own stream of keys, so a new use does not change the others.
INIT, DROPOUT_A, DROPOUT_B, RESERVE, NEGATIVES, DROPOUT_C = range(6)


class TrainState(flax.struct.PyTreeNode):
    """Everything on the device that a run needs to resume."""

    step: Int[Array, ""]  # number of optimiser updates so far
    epoch: Int[Array, ""]  # current epoch, from 0, warm-up included; sets the learning rate
    params: Any
    batch_stats: Any
    opt_state: Any
    own: Any  # state of the method itself (L2RM: the learned cost and its optimiser)
    key: Array  # the run's PRNG key; constant: `step_key` folds the step into it


class LossSplit(NamedTuple):
    """Loss and posterior of each pair before an epoch, and the side the split puts it on.

    Attributes:
      loss: [N] loss of each pair, in the order of the pairs.
      mismatched_posterior: [N] probability that the pair is mismatched, in [0, 1].
      called_matched: [N] whether the split calls the pair matched.
    """

    loss: Float[np.ndarray, " N"]
    mismatched_posterior: Float[np.ndarray, " N"]
    called_matched: Bool[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The pairs that one epoch trains on.

    Attributes:
      streams: row numbers of training pairs for each stream name, `[n]`, or `[n, 2]` and
        `[n, k, 2]` to combine images and captions of different pairs (see `data.TrainStream`). An
        epoch is one pass over the first stream; the other streams restart, reshuffled, when they
        are exhausted.
      report: numbers to log with the epoch.
      warnings: messages for the user, by the name of the warning (see `l2rm_jax.run.health`).
      split: the split by losses, which is saved in the work directory; None without one.
      values: numbers of each pair, by the name that `Method.pair_values` gives them: `[N]`, or
        `[n, N]` for n networks. They replace those in `state.own["pairs"]` before the first step.
      once: streams that end when they are exhausted: the later steps of the epoch lack them.
    """

    streams: dict[str, np.ndarray]
    report: dict[str, float] = dataclasses.field(default_factory=dict)
    warnings: dict[str, str] = dataclasses.field(default_factory=dict)
    split: "LossSplit | None" = None
    values: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    once: frozenset[str] = frozenset()


# The model at the start of an epoch: as the last epoch left it, the best one by validation so far,
# or a new model with a new optimiser.
LAST, BEST, FRESH = "last", "best", "fresh"


@dataclasses.dataclass(frozen=True)
class Method:
    """A method as the training loop sees it: its functions, its streams, and its losses.

    A method has `plan` and `step`, or is in closed form and has `epochs`.

    Attributes:
      init: `(key, batch) -> TrainState`. Only the shapes of the batch matter.
      plan: `(score_pairs, dataset, epoch) -> EpochPlan`, runs on the host before each epoch.
        `score_pairs(score)` applies `score(state, batch) -> [B, ...]` (or a tree of such arrays)
        to every training pair exactly once and returns the values in the order of the pairs.
      step: `(state, {stream: batch}) -> (state, metrics)`, one update. A pure function, traced
        once per set of shapes.
      fit: `(state, dataset) -> [(state, report), ...]`, runs on the host: fits the model to the
        training pairs in several ways; the report describes each fit. None for heads that cannot
        be fitted. A method with steps starts from one of these fits (see `closed_form`).
      epochs: number of epochs if the config does not set it. A method in closed form has one
        epoch per fit.
      begin: `epoch -> LAST, BEST or FRESH`, the model that an epoch (counted from 0) starts from.
        The values per pair and the step count are kept in all three cases.
      pair_values: initial values of the numbers that the state keeps for each training pair, by
        name. They are `[N]` arrays in `state.own["pairs"]` (`[n, N]` for n networks), which a plan
        or a step may replace. Under the name `CALLED_MATCHED`, 1 or 0 says whether the method calls
        the pair matched; an audit of the run shows it.
      networks: number of networks trained together. If there are several, parameters, statistics,
        optimiser states and `own` have a leading axis over them (see `networks.py`), and the
        similarities of the model are their mean.
      streams: number of batches that a step takes from each stream after the warm-up, by name.
      losses: for each stream, the name of the metric that reports its loss, and the loss as a
        function of similarities, `[B, B] -> scalar`. The warning `flat_loss` compares the metric
        with the loss of equal similarities: a model whose loss stays there has learned nothing.
      splits: whether its plans after the warm-up split the pairs and report the sizes `matched`
        and `mismatched`, and `split_precision` if the truth is known; the console then shows
        these columns for each epoch.
      moves_mass: whether its steps rematch by transport and report `moved_mass`, which adds a
        column to the console.
      queue_length: images of the stream `mismatched` that a step matches with its captions; 0: one
        batch.
      warnings: `(report, first) -> {name: message}`, warnings about the metrics of an epoch.
        `first` has each metric of the first epoch that reported it (see `l2rm_jax.run.health`).
    """

    init: Callable[[Array, Any], TrainState]
    plan: Callable[[Callable, Any, int], EpochPlan] | None = None
    step: Callable[[TrainState, dict], tuple[TrainState, dict]] | None = None
    fit: Callable[[TrainState, Any], list[tuple[TrainState, dict[str, float]]]] | None = None
    epochs: int | None = None
    begin: Callable[[int], str] = lambda epoch: LAST
    pair_values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    networks: int = 1
    streams: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"pairs": 1})
    losses: Mapping[str, tuple[str, Callable]] = dataclasses.field(default_factory=dict)
    splits: bool = False
    moves_mass: bool = False
    queue_length: int = 0
    warnings: Callable[[Mapping[str, float], Mapping[str, float]], dict[str, str]] = (
        lambda report, first: {}
    )


def forward(
    model: RetrievalModel,
    params: Any,
    batch_stats: Any,
    batch: Any,
    key: Array,
) -> tuple[Float[Array, "I J"], Any]:
    """Train-mode similarities of the global batch, and the updated batch statistics.

    Args:
      model: the model.
      params: its parameters.
      batch_stats: its batch statistics before the step.
      batch: this device's share of the global batch.
      key: PRNG key for dropout.
    """
    sims, updated = model.apply(
        {"params": params, "batch_stats": batch_stats},
        batch,
        train=True,
        method=RetrievalModel.global_similarity,
        rngs={"dropout": key},
        mutable=["batch_stats"],
    )
    return sims, updated.get("batch_stats", {})  # empty for heads without batch norm


def evaluate(model: RetrievalModel, state: TrainState, batch: Any) -> Float[Array, "I J"]:
    """Eval-mode similarities of the global batch."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    return model.apply(variables, batch, method=RetrievalModel.global_similarity)


def mean_vectors(
    model: RetrievalModel, state: TrainState, batch: Any
) -> tuple[Float[Array, "B D"], Float[Array, "B D"]]:
    """Eval-mode mean regions and mean words of the global batch, as unit vectors."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    return model.apply(variables, batch, method="mean_vectors")


def unit_vectors(
    model: RetrievalModel, images: ImageCode, texts: TextCode
) -> tuple[Float[Array, "B D"], Float[Array, "B D"]]:
    """Unit vectors of the images and captions of the global batch, one each, on all devices.

    If the similarity is a product of two vectors, these vectors are returned. For other heads they
    are the global vectors (`sgr`, `saf`), or the mean region and the mean word.

    Args:
      model: the model, inside `apply`.
      images: encoded images of this device.
      texts: encoded captions of this device.
    """
    if model.is_product:
        head = model.similarity_head
        vectors = head.embed_images(images), head.embed_texts(texts)
    else:
        vectors = (
            l2_normalise(masked_mean(local, code.mask)) if code.overall is None else code.overall
            for code, local in ((images, images.regions), (texts, texts.words))
        )
    return tuple(parallel.global_rows(x, model.axis_name) for x in vectors)


def pair_losses(
    model: RetrievalModel, margin: float, state: TrainState, batch: Any
) -> Float[Array, " B"]:
    """Loss by which the pairs are split: each pair's mean hinge over all negatives of its batch."""
    return ranking.per_pair_hinge(evaluate(model, state, batch), margin=margin)


def step_key(state: TrainState, use: int) -> Array:
    """PRNG key of this step for one use of random numbers (`DROPOUT_A`, `RESERVE`, ...)."""
    return jax.random.fold_in(jax.random.fold_in(state.key, use), state.step)


def init_state(
    model: RetrievalModel,
    optimiser: Optimiser,
    key: Array,
    batch: Any,
    own: Any = (),
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> TrainState:
    """State before the first step.

    Args:
      model: the model.
      optimiser: its optimiser.
      key: the run's PRNG key.
      batch: any batch; only its shapes matter.
      own: initial state of the method itself, a tree of arrays.
      extra: parameters of the method, by group; the optimiser trains them with the model.
    """
    # The axis of the devices exists only inside a mapped function; parameters do not depend on it.
    local = model.clone(axis_name=None)
    init = jax.jit(local.init)
    key_init = jax.random.fold_in(key, INIT)
    variables = init(key_init, jax.tree.map(lambda x: x[:2], batch))
    params = {**variables["params"], **extra}
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        epoch=jnp.zeros((), jnp.int32),
        params=params,
        batch_stats=variables.get("batch_stats", {}),
        opt_state=optimiser.init(params),
        own=own,
        key=key,
    )


def gradient_step(
    loss_fn: Callable, state: TrainState, optimiser: Optimiser, axis_name: str | None
) -> tuple[TrainState, dict]:
    """Take one optimiser step down the gradient of a loss, and count the step.

    Arguments and result are as for `descend`.
    """
    state, metrics = descend(loss_fn, state, optimiser, axis_name)
    return state.replace(step=state.step + 1), metrics


def descend(
    loss_fn: Callable, state: TrainState, optimiser: Optimiser, axis_name: str | None
) -> tuple[TrainState, dict]:
    """Update the parameters once, without counting a step.

    Args:
      loss_fn: `params -> (loss, (batch_stats, metrics))`.
      state: state before the update.
      optimiser: optimiser of the parameters.
      axis_name: mapped axis of the devices, over which gradients are averaged; None for one
        device.

    Returns:
      The new state, and the metrics with `grad_norm`, the norm before clipping, added.
    """
    trained, frozen = optimiser.split(state.params)

    def loss_of_trained(trained: Any) -> tuple[Array, tuple[Any, dict]]:
        return loss_fn(optimiser.join(trained, frozen))

    grads, (batch_stats, metrics) = jax.grad(loss_of_trained, has_aux=True)(trained)
    grads = parallel.device_mean(grads, axis_name)
    params, opt_state = optimiser.update(grads, state.opt_state, state.params, state.epoch)
    metrics = {**metrics, "grad_norm": optax.tree.norm(grads)}
    return state.replace(params=params, batch_stats=batch_stats, opt_state=opt_state), metrics


def skip_non_finite(step: Callable) -> Callable:
    """Wrap `step` so that it leaves the state unchanged if any metric is not finite.

    Metrics include the loss and the gradient norm. The step counter still advances, so the next
    step draws new random numbers.
    """

    def guarded_step(state: TrainState, batch: Any) -> tuple[TrainState, dict]:
        new, metrics = step(state, batch)
        finite = jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(jnp.isfinite, metrics))))
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
    """Make one update with `update_on`, and count the step."""
    state, metrics = update_on(model, loss, optimiser, state, batch)
    return state.replace(step=state.step + 1), metrics


def update_on(
    model: RetrievalModel,
    loss: Callable[[Float[Array, "B B"]], Float[Array, ""]],
    optimiser: Optimiser,
    state: TrainState,
    batch: Any,
    use: int = DROPOUT_A,
) -> tuple[TrainState, dict]:
    """Update the parameters once with a loss that depends only on the batch's similarities.

    Args:
      model: the model.
      loss: the loss.
      optimiser: optimiser of the parameters.
      state: state before the update.
      batch: the batch.
      use: stream of random numbers for dropout; each update of a step needs a different one.

    Returns:
      The new state, and the metrics `loss` and `grad_norm`.
    """

    def loss_fn(params):
        sims, stats = forward(model, params, state.batch_stats, batch, step_key(state, use))
        value = loss(sims)
        return value, (stats, {"loss": value})

    return descend(loss_fn, state, optimiser, model.axis_name)
