"""Co-teaching: train two networks, each on the split that the other one makes.

NCR, BiCro, SPS and CREAM share this loop. An epoch after the warm-up:

1. Both networks score all pairs. A mixture splits each one's losses.
2. Network a trains on the subsets of b's split, and b on those from a, with separate batches. A
   step takes a batch of every subset and updates each network once for each of them.

With `train.networks=1`, one network splits for itself and is its own peer (NCR* of RCL Tab. 4).

Each network uses its peer as it was before the step. The authors train a for a whole epoch, then b
with the updated a as its peer. Only the peer's predictions, the labels of NCR and BiCro, differ.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from l2rm_jax.errors import check_names
from l2rm_jax.losses import contrastive, ranking
from l2rm_jax.methods import base
from l2rm_jax.methods.base import BEST, LAST, EpochPlan, Method, TrainState
from l2rm_jax.methods.networks import (
    by_network,
    join_plans,
    mean_metrics,
    network,
    of_each_network,
    over_networks,
    scores_of_networks,
    stack_states,
)
from l2rm_jax.methods.split import split_by_posterior, warmup_pairs

NETWORKS = 2
# Probability of being matched: a number that the state may keep for each pair.
WEIGHT = "posterior"  # the name that checkpoints have
NAMES = {"margins": ("paper", "code"), "soft_margin": tuple(ranking.SOFT_MARGINS)}

Loss = Callable[[Float[Array, "B B"]], Float[Array, ""]]


@dataclass(frozen=True)
class CoTeaching:
    """Parts that a method of two networks supplies. Stream names have no letter here.

    Attributes:
      warmup_loss: loss of the warm-up, which trains on all pairs; None if `update` trains them too,
        as the stream "warmup".
      pair_losses: `(state of one network, batch) -> [B]`, the losses that the mixture splits.
      split: `(losses [N], truth [N]) -> EpochPlan`, a split of one network's losses.
      subsets: `(plan, weight [N], own weight [N]) -> EpochPlan`: makes a network's streams from
        its peer's split (by loss or by cross-fitting), the probability of being matched in
        that split, and the probability in its own split.
      update: `(own state, peer's state, batches by stream) -> (own state, metrics)`: the updates of
        one network in a step. A stream may be missing.
      streams: the streams of a step after the warm-up, as `Method.streams`.
      pair_values: as `Method.pair_values`.
      own: initial numbers that each network keeps in its state, by name.
      starts: first epoch, counted from the end of the warm-up, of each stream that starts late.
      ends: first epoch, counted likewise, without the stream, for each stream that ends early.
      begin: as `Method.begin`.
      once: as `EpochPlan.once`.
    """

    warmup_loss: Loss | None
    pair_losses: Callable[[TrainState, Any], Float[Array, " B"]]
    split: Callable[[np.ndarray, np.ndarray], EpochPlan]
    subsets: Callable[[EpochPlan, np.ndarray, np.ndarray], EpochPlan]
    update: Callable[[TrainState, TrainState, Mapping[str, Any]], tuple[TrainState, dict]]
    streams: Mapping[str, int]
    pair_values: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, float] = field(default_factory=dict)
    starts: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    begin: Callable[[int], str] = lambda epoch: LAST
    once: frozenset[str] = frozenset()


def make_co_teaching(model, config, optimiser: base.Optimiser, parts: CoTeaching) -> Method:
    """Make a method of two networks.

    Args:
      model: the model of one network.
      config: config of the run.
      optimiser: optimiser of each network.
      parts: the parts that the method supplies.

    Raises:
      ConfigError: a field of `config.co_teaching` has a value that is not in `NAMES`.
    """
    check_names("co_teaching", config.co_teaching, NAMES)

    networks = 1 if config.train.networks == 1 else NETWORKS
    own_state = {name: jnp.float32(value) for name, value in parts.own.items()}

    def init(key: Array, batch: Any) -> TrainState:
        if networks == 1:
            return base.init_state(model, optimiser, key, batch, own=own_state)
        keys = [jax.random.fold_in(key, n) for n in range(NETWORKS)]
        states = [base.init_state(model, optimiser, each, batch, own=own_state) for each in keys]
        return stack_states(states).replace(key=key)

    losses = {"warmup": ("loss", parts.warmup_loss)} if parts.warmup_loss else {}
    losses_of = scores_of_networks(parts.pair_losses, networks)

    def score(state: TrainState, batch: Any) -> Float[Array, "B n"]:
        return losses_of(state, batch).T

    def plan(score_pairs: Callable, dataset, epoch: int) -> EpochPlan:
        since = epoch - config.train.warmup_epochs
        if since < 0:
            pairs = warmup_pairs(config.split.by, dataset)
            return join_plans([EpochPlan({"warmup": pairs})] * networks)
        if config.split.by == "judgement":
            plan = split_by_posterior(dataset.posterior, dataset.matched)
            weight = 1 - dataset.posterior
            plans = [parts.subsets(plan, weight, weight)] * networks
        else:
            losses = score_pairs(score)
            own = [parts.split(losses[:, n], dataset.matched) for n in range(networks)]
            weights = [1 - plan.split.mismatched_posterior for plan in own]
            peers = reversed(range(networks))  # each network trains on the other's
            plans = [
                parts.subsets(own[peer], weights[peer], weights[n]) for n, peer in enumerate(peers)
            ]
        joined = join_plans([_begun(plan, parts, since) for plan in plans])
        late = _late_streams(parts, config.train.epochs) if since == 0 else {}
        return replace(joined, warnings={**joined.warnings, **late})

    def update(own: TrainState, given: dict) -> tuple[TrainState, dict]:
        batches = given["batches"]
        if "warmup" in batches and parts.warmup_loss:
            return base.update_on(model, parts.warmup_loss, optimiser, own, batches["warmup"])
        return parts.update(own, own.replace(**given["peer"]), batches)

    def step(state: TrainState, batch: dict) -> tuple[TrainState, dict]:
        if networks == 1:
            state, metrics = update(state, {"batches": batch, "peer": _seen(state)})
            return state.replace(step=state.step + 1), metrics
        peers = [network(state, n) for n in reversed(range(NETWORKS))]
        inputs = [
            {"batches": batches, "peer": _seen(peer)}
            for batches, peer in zip(of_each_network(batch, NETWORKS), peers, strict=True)
        ]
        state, metrics = over_networks(update, state, inputs)
        return state.replace(step=state.step + 1), mean_metrics(metrics)

    return Method(
        init=init,
        plan=plan,
        step=step,
        begin=parts.begin,
        pair_values=parts.pair_values,
        networks=networks,
        streams=by_network([parts.streams] * networks),
        losses=by_network([losses] * networks),
        splits=True,
    )


def soft_triplet(config, labels: Float[Array, "..."]) -> Loss:
    """Triplet loss of the hardest negatives whose margin grows with the label.

    Args:
      config: config of the run.
      labels: in [0, 1], `[B]` of the pairs, or `[B, B]` of all entries of the similarity matrix.
    """
    margins = ranking.soft_margin(
        jax.lax.stop_gradient(labels),
        margin=config.loss.margin,
        kind=config.co_teaching.soft_margin,
    )
    return partial(ranking.triplet_hardest, margin=margins)


def info_nce_losses(model, tau: float, state: TrainState, batch) -> Float[Array, " B"]:
    """InfoNCE of each pair in its batch, in evaluation mode."""
    return contrastive.info_nce_per_pair(base.evaluate(model, state, batch), tau=tau)


def probabilities(model, tau: float, state: TrainState, batch) -> Float[Array, " B"]:
    """Probability of each pair in its batch, in evaluation mode."""
    return contrastive.pair_probabilities(base.evaluate(model, state, batch), tau=tau)


def best_warmup(warmup: int, epoch: int) -> str:
    """A `Method.begin` whose first epoch after the warm-up starts from the best warm-up model."""
    return BEST if epoch == warmup > 0 else LAST


def joined_metrics(updates: Mapping[str, dict]) -> dict:
    """Combine the metrics of a step's updates, which are given by stream name.

    `loss` is the sum of the losses, `grad_norm` is taken from the first update.
    """
    first = next(iter(updates.values()), {"grad_norm": np.float32(0)})
    metrics = {
        f"{name}_{stream}": value for stream, own in updates.items() for name, value in own.items()
    }
    total = sum((own["loss"] for own in updates.values()), np.float32(0))
    return {"loss": total, "grad_norm": first["grad_norm"], **metrics}


def _seen(peer: TrainState) -> dict[str, Any]:
    """Fields of a network that its peer may read in a step."""
    return {"params": peer.params, "batch_stats": peer.batch_stats, "own": peer.own}


def _late_streams(parts: CoTeaching, epochs: int) -> dict[str, str]:
    """Warn about streams that start only after the last epoch."""
    late = {
        name: first
        for name, first in parts.starts.items()
        if first >= epochs and name not in parts.ends
    }
    if not late:
        return {}
    starts = ", ".join(f"{name} pairs from epoch {first}" for name, first in late.items())
    return {
        "late_stream": (
            f"the run would train {starts} after the warm-up, but ends after {epochs} of these "
            "epochs, so these pairs are never trained on. Lower co_teaching.mismatched_epoch (or "
            "the epochs of sps or cream), or raise train.epochs"
        )
    }


def _begun(plan: EpochPlan, parts: CoTeaching, since: int) -> EpochPlan:
    """Remove the streams that do not run in epoch `since` after the warm-up."""
    streams = {
        name: rows
        for name, rows in plan.streams.items()
        if parts.starts.get(name, 0) <= since < parts.ends.get(name, since + 1)
    }
    return replace(plan, streams=streams, once=parts.once & streams.keys())
