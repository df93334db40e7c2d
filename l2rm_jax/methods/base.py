"""Code shared by all methods: training state, the `Method` interface, and optimiser updates."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from l2rm_jax.devices import parallel
from l2rm_jax.losses import ranking
from l2rm_jax.models.retrieval import RetrievalModel

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
    """The loss of each pair before an epoch, and what the split made of it.

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
      split: how the pairs were split by their losses, to be kept in the work directory; None if
        they were not.
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


# What an epoch begins with: the model as the last epoch left it, the one with the best validation
# so far, or a fresh one, with a fresh optimiser.
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
        training pairs in several ways; a report says how. None for heads that cannot be fitted. A
        method with steps starts from one of them (see `closed_form`).
      epochs: number of epochs, if it is not that of the config; of a method in closed form, the
        number of its fits: each is one epoch.
      begin: `epoch -> LAST, BEST or FRESH`, what an epoch (counted from 0) begins with. Numbers per
        pair and the count of steps go on in any case.
      pair_values: initial values of the numbers that the state keeps for each training pair, by
        name. They are `[N]` arrays in `state.own["pairs"]` (`[n, N]` for n networks), which a plan
        or a step may replace.
      networks: number of networks side by side. If there are several, parameters, statistics,
        optimiser states and `own` have a leading axis over them (see `networks.py`), and the
        similarities of the model are their mean.
      streams: names of the streams that a step uses after the warm-up, with the number of
        batches that it takes from each.
      losses: for each stream, the name of the metric that reports its loss, and the loss as a
        function of similarities, `[B, B] -> scalar`. The warning `flat_loss` compares the metric
        with the loss of equal similarities: a model whose loss stays there has learned nothing.
      splits: whether its plans after the warm-up split the pairs and report the sizes `matched`
        and `mismatched`, and where the truth is known `split_precision`; an epoch's row on the
        screen then has columns for them.
      moves_mass: whether its steps rematch by transport and report `moved_mass`; this adds a column
        too.
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
        batch.images,
        batch.tokens,
        batch.lengths,
        batch.regions,
        train=True,
        method="global_similarity",
        rngs={"dropout": key},
        mutable=["batch_stats"],
    )
    return sims, updated.get("batch_stats", {})  # empty for heads without batch norm


def evaluate(model: RetrievalModel, state: TrainState, batch: Any) -> Float[Array, "I J"]:
    """Eval-mode similarities of the global batch."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    inputs = (batch.images, batch.tokens, batch.lengths, batch.regions)
    return model.apply(variables, *inputs, method="global_similarity")


def mean_vectors(
    model: RetrievalModel, state: TrainState, batch: Any
) -> tuple[Float[Array, "B D"], Float[Array, "B D"]]:
    """Eval-mode mean regions and mean words of the global batch, as unit vectors."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    inputs = (batch.images, batch.tokens, batch.lengths, batch.regions)
    return model.apply(variables, *inputs, method="mean_vectors")


def pair_losses(
    model: RetrievalModel, margin: float, state: TrainState, batch: Any
) -> Float[Array, " B"]:
    """Loss of each pair, by which pairs are split: mean hinge over all negatives of its batch."""
    return ranking.per_pair_hinge(evaluate(model, state, batch), margin=margin)


def step_key(state: TrainState, use: int) -> Array:
    """PRNG key of this step for one use of random numbers (`DROPOUT_A`, `RESERVE`, ...)."""
    return jax.random.fold_in(jax.random.fold_in(state.key, use), state.step)


@dataclasses.dataclass(frozen=True)
class Optimiser:
    """AdamW after clipping by the global norm, with the step-wise decay of the reference code.

    The learning rate is divided by 10 every `decay_epochs` epochs, counted from the latest start:
    the end of the warm-up (L2RM suppl. Tab. 1, "update learning rate"), or that of each schedule.

    Attributes:
      learning_rate: rate before the first decay, and before the first start.
      decay_epochs: epochs between two decays, >= 1.
      starts: ascending epochs, counted from 0, at which the count starts.
      grad_clip: largest global norm of the gradient; infinity switches clipping off.
      weight_decay: decoupled weight decay, multiplied by the learning rate.
      groups: rates of parts of the parameters, relative to the learning rate; a group is the first
        key of a parameter's path. With rate 0 it is frozen: it gets no gradient and has no moments.
    """

    learning_rate: float
    decay_epochs: int
    starts: tuple[int, ...] = (0,)
    grad_clip: float = np.inf
    weight_decay: float = 0.0
    groups: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def split(self, params: Any) -> tuple[Any, dict[str, Any]]:
        """Parameters that are trained, and the frozen groups."""
        frozen = {name: params[name] for name, rate in self.groups.items() if rate == 0}
        if not frozen:
            return params, {}
        return {name: part for name, part in params.items() if name not in frozen}, frozen

    def _chain(self) -> optax.GradientTransformation:
        if not np.isfinite(self.grad_clip):
            return optax.scale_by_adam()
        return optax.chain(optax.clip_by_global_norm(self.grad_clip), optax.scale_by_adam())

    def init(self, params: Any) -> Any:
        """Optimiser state for these parameters."""
        return self._chain().init(self.split(params)[0])

    def rate(self, epoch: Int[Array, ""]) -> Float[Array, ""]:
        """Learning rate of an epoch."""
        since = jnp.where(epoch < self.starts[0], 0, epochs_since(epoch, self.starts))
        decays = since // self.decay_epochs
        return self.learning_rate * 0.1**decays

    def update(self, grads: Any, opt_state: Any, params: Any, epoch: Array) -> tuple[Any, Any]:
        """Parameters and optimiser state after one update; `grads` are of the trained ones."""
        params, frozen = self.split(params)
        updates, opt_state = self._chain().update(grads, opt_state, params)
        rate = self.rate(epoch)

        def descend(part: Any, update: Any, rate: Array) -> Any:
            return jax.tree.map(lambda p, u: p - rate * (u + self.weight_decay * p), part, update)

        if not self.groups:
            return descend(params, updates, rate), opt_state
        rates = {name: rate * self.groups.get(name, 1.0) for name in params}
        params = {name: descend(params[name], updates[name], rates[name]) for name in params}
        return {**params, **frozen}, opt_state


def epochs_since(epoch: Int[Array, ""], starts: tuple[int, ...]) -> Int[Array, ""]:
    """Epochs since the latest of `starts`; not before the first of them."""
    since = epoch - jnp.asarray(starts)
    return jnp.min(jnp.where(since >= 0, since, jnp.iinfo(jnp.int32).max))


def model_optimiser(config, starts: tuple[int, ...] | None = None) -> Optimiser:
    """Make the optimiser of the model from `config.optim`.

    Args:
      config: config of the run.
      starts: as in `Optimiser`; None for the end of the warm-up.
    """
    return Optimiser(
        learning_rate=config.optim.learning_rate,
        decay_epochs=config.optim.decay_epochs,
        starts=(config.train.warmup_epochs,) if starts is None else starts,
        grad_clip=config.optim.grad_clip,
        weight_decay=config.optim.weight_decay,
        groups={"text_base": config.optim.text_rate} if config.model.pretrained else {},
    )


def init_state(
    model: RetrievalModel, optimiser: Optimiser, key: Array, batch: Any, own: Any = ()
) -> TrainState:
    """State before the first step.

    Args:
      model: the model.
      optimiser: its optimiser.
      key: the run's PRNG key.
      batch: any batch; only its shapes matter.
      own: initial state of the method itself, a tree of arrays.
    """
    # The axis of the devices exists only inside a mapped function; parameters do not depend on it.
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


def gradient_step(
    loss_fn: Callable, state: TrainState, optimiser: Optimiser, axis_name: str | None
) -> tuple[TrainState, dict]:
    """Take one optimiser step down the gradient of a loss, and count the step.

    Args and the result are those of `descend`.
    """
    state, metrics = descend(loss_fn, state, optimiser, axis_name)
    return state.replace(step=state.step + 1), metrics


def descend(
    loss_fn: Callable, state: TrainState, optimiser: Optimiser, axis_name: str | None
) -> tuple[TrainState, dict]:
    """Update the parameters once; a step may do so several times.

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
        return loss_fn({**trained, **frozen} if frozen else trained)

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
    """A step of one update: `update_on`, and the step is counted."""
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
    """Update the parameters once with a loss of the train-mode similarities of a batch alone.

    Args:
      model: the model.
      loss: the loss.
      optimiser: optimiser of the parameters.
      state: state before the update.
      batch: the batch.
      use: which random numbers dropout takes; each update of a step has its own.

    Returns:
      The new state, and the metrics `loss` and `grad_norm`.
    """

    def loss_fn(params):
        sims, stats = forward(model, params, state.batch_stats, batch, step_key(state, use))
        value = loss(sims)
        return value, (stats, {"loss": value})

    return descend(loss_fn, state, optimiser, model.axis_name)
