"""Train several networks together, stacked along a leading axis.

In the state of n networks, `params`, `batch_stats`, `opt_state` and `own` have a leading axis of n;
the counts of steps and epochs and the key are shared. Stream names end with the letter of the
network that trains on them: "matched_a", "matched_b".
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from l2rm_jax.devices import parallel
from l2rm_jax.devices.batch import Batch
from l2rm_jax.methods.base import EpochPlan, LossSplit, Method, TrainState
from l2rm_jax.methods.split import call_matched
from l2rm_jax.models.retrieval import RetrievalModel

LETTERS = "abcdefgh"


def stack(trees: Sequence[Any]) -> Any:
    """Stack trees of equal shapes along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def stack_states(states: Sequence[TrainState]) -> TrainState:
    """Stack the states of single networks; counts and key come from the first state."""
    return states[0].replace(**stack([_parts(state) for state in states]))


def network(state: TrainState, n: int | Array) -> TrainState:
    """Extract the state of network n, with the network's own key."""
    own = jax.tree.map(lambda leaf: leaf[n], _parts(state))
    return state.replace(**own, key=jax.random.fold_in(state.key, n))


def batch_of_network(batch: Batch, n: int) -> Batch:
    """Select network n's vectors of the images, in a batch that has vectors of several networks."""
    return batch if batch.vectors is None else batch._replace(vectors=batch.vectors[:, n])


def over_networks(
    update: Callable[..., tuple[TrainState, Any]], state: TrainState, inputs: Sequence[Any]
) -> tuple[TrainState, Any]:
    """Apply `update(state of a network, its inputs) -> (state, outputs)` to each network.

    The networks are updated one after the other in a loop that is compiled once (`lax.map`). It
    needs half the memory of `vmap`, and half the time on a CPU. If the structures of the inputs
    differ, because a network lacks a stream, each network is compiled separately.

    Args:
      update: pure function; it may communicate between devices.
      state: state of several networks.
      inputs: the inputs of each network.

    Returns:
      The updated state, and the outputs: stacked, `[n, ...]`, or a list with an entry per network
      if their structures differ.
    """
    count = len(inputs)

    def one(n: int | Array, given: Any) -> tuple[Any, Any]:
        new, outputs = update(network(state, n), given)
        return _parts(new), outputs

    if len({jax.tree.structure(given) for given in inputs}) == 1:
        mapped = jax.lax.map(lambda each: one(*each), (jnp.arange(count), stack(inputs)))
        return state.replace(**mapped[0]), mapped[1]
    results = [one(n, given) for n, given in enumerate(inputs)]
    return state.replace(**stack([parts for parts, _ in results])), [each for _, each in results]


def scores_of_networks(score: Callable, networks: int) -> Callable:
    """Make a scoring function of several networks from `score(state of one, batch) -> [B]`.

    Returns:
      `(state, batch) -> [n, B]`, the scores by each network; `[1, B]` for one network.
    """

    def scores(state: TrainState, batch: Any) -> Array:
        if networks == 1:
            return score(state, batch)[None]
        inputs = [batch_of_network(batch, n).vectors for n in range(networks)]

        def score_one(own: TrainState, vectors: Any) -> tuple[TrainState, Array]:
            return own, score(own, batch._replace(vectors=vectors))

        return over_networks(score_one, state, inputs)[1]

    return scores


@functools.cache  # compiled once per object
def vectors_of_networks(model: RetrievalModel, networks: int) -> Callable:
    """Make the function `(state, batch) -> Batch.vectors` of a head with `embed_images`."""

    def vectors(state: TrainState, batch: Batch) -> Float[Array, "B D"]:
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        own = model.apply(variables, batch, method="embed_images")
        return parallel.global_rows(own, model.axis_name)

    def vectors_of_each(state: TrainState, batch: Batch) -> Float[Array, "B n D"]:
        return jnp.swapaxes(scores_of_networks(vectors, networks)(state, batch), 0, 1)

    return vectors if networks == 1 else vectors_of_each


def mean_metrics(metrics: Any) -> dict[str, Array]:
    """Average each metric over the networks; add each network's losses and gradient norms.

    Args:
      metrics: the outputs of `over_networks`. A network without a stream lacks its metrics.

    Returns:
      For a metric `loss` the keys `loss`, `loss_a`, `loss_b` and so on.
    """
    if isinstance(metrics, Mapping):
        count = len(next(iter(metrics.values())))
        metrics = [{name: values[n] for name, values in metrics.items()} for n in range(count)]
    names = dict.fromkeys(name for each in metrics for name in each)
    means = {
        name: jnp.mean(jnp.stack([each[name] for each in metrics if name in each]))
        for name in names
    }
    own = [
        {name: each[name] for name in each if name.startswith(("loss", "grad_norm"))}
        for each in metrics
    ]
    return {**means, **by_network(own)}


def of_each_network(streams: Mapping[str, Any], networks: int) -> list[dict[str, Any]]:
    """Split {'loss_a': ..., 'loss_b': ...} into one dict per network, without the suffix."""
    return [
        {
            name.removesuffix(f"_{letter}"): value
            for name, value in streams.items()
            if name.endswith(f"_{letter}")
        }
        for letter in LETTERS[:networks]
    ]


def by_network(streams: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add the letter of the network to each stream name: the inverse of `of_each_network`.

    The values of a single network keep their names.
    """
    if len(streams) == 1:
        return dict(streams[0])
    most_first = sorted(streams, key=len, reverse=True)
    names = dict.fromkeys(name for own in most_first for name in own)
    return {
        f"{name}_{letter}": own[name]
        for name in names
        for letter, own in zip(LETTERS, streams, strict=False)
        if name in own
    }


def longest_first(streams: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Move the longest stream of the first stream's kind to the front; it sets the epoch length."""
    if not streams:
        return {}
    kind = next(iter(streams)).rpartition("_")[0]
    first = max(
        (name for name in streams if name.rpartition("_")[0] == kind),
        key=lambda name: len(streams[name]),
    )
    return {first: streams[first], **streams}


def combine_scores(scores: Sequence[Any]) -> Any:
    """Combine the scores of several networks into the scores of their ensemble.

    Args:
      scores: per network, either similarities, which are averaged, or vectors of images and of
        captions, which are concatenated so that their product is the mean.
    """
    if len(scores) == 1:
        return scores[0]
    if isinstance(scores[0], tuple):
        return tuple(
            np.concatenate(parts, axis=-1) / math.sqrt(len(scores))
            for parts in zip(*scores, strict=True)
        )
    return sum(scores) / len(scores)


def side_by_side(method: Method, networks: int) -> Method:
    """Make a method for several networks from a method for one; each trains independently.

    They differ in their initialisation (except heads fitted in closed form), in dropout and in the
    order of their pairs. Each has its own plan and its own streams. If a plan draws pairs with the
    seed of the run, all networks get the same pairs.

    Args:
      method: method of one network, with steps.
      networks: how many there are, at most `len(LETTERS)`.
    """

    def init(key: Array, batch: Any) -> TrainState:
        states = [method.init(jax.random.fold_in(key, n), batch) for n in range(networks)]
        return stack_states(states).replace(key=key)

    # A scoring function is compiled once per object, so create each object only once.
    @functools.cache
    def score_of(score: Callable, n: int) -> Callable:
        return lambda state, batch: score(network(state, n), batch_of_network(batch, n))

    def plan(score_pairs: Callable, dataset: Any, epoch: int) -> EpochPlan:
        def plan_of(n: int) -> EpochPlan:
            return method.plan(lambda score: score_pairs(score_of(score, n)), dataset, epoch)

        return join_plans([plan_of(n) for n in range(networks)])

    def step(state: TrainState, batch: dict) -> tuple[TrainState, dict]:
        state, metrics = over_networks(method.step, state, of_each_network(batch, networks))
        return state.replace(step=state.step + 1), mean_metrics(metrics)

    return replace(
        method,
        init=init,
        plan=plan,
        step=step,
        networks=networks,
        streams=by_network([method.streams] * networks),
        losses=by_network([method.losses] * networks),
    )


def join_plans(plans: Sequence[EpochPlan]) -> EpochPlan:
    """Merge the plans of several networks; the numbers of the report are means."""
    if len(plans) == 1:
        return plans[0]
    first = plans[0]
    names = {name for plan in plans for name in plan.report}
    streams = by_network([plan.streams for plan in plans])
    return EpochPlan(
        longest_first(streams),
        {
            name: float(np.mean([plan.report[name] for plan in plans if name in plan.report]))
            for name in sorted(names)
        },
        {name: text for plan in reversed(plans) for name, text in plan.warnings.items()},
        _mean_split([plan.split for plan in plans]) if first.split else None,
        {name: np.stack([plan.values[name] for plan in plans]) for name in first.values},
        frozenset(by_network([dict.fromkeys(plan.once) for plan in plans])),
    )


def same_fit(fit: Callable, networks: int) -> Callable:
    """Make a `Method.fit` that gives every network the same fitted model."""

    def fit_all(state: TrainState, dataset: Any) -> list[tuple[TrainState, dict[str, float]]]:
        fits = fit(network(state, 0), dataset)
        return [
            (stack_states([one] * networks).replace(own=state.own, key=state.key), report)
            for one, report in fits
        ]

    return fit_all


def _parts(state: TrainState) -> dict[str, Any]:
    """Fields of the state that have the axis of the networks."""
    names = ("params", "batch_stats", "opt_state", "own")
    return {name: getattr(state, name) for name in names}


def _mean_split(splits: Sequence[LossSplit]) -> LossSplit:
    """Average the losses and posteriors of several networks, and split by the mean posterior."""
    loss, posterior = (
        np.mean([getattr(split, name) for split in splits], axis=0)
        for name in ("loss", "mismatched_posterior")
    )
    return LossSplit(loss, posterior, call_matched(posterior))
