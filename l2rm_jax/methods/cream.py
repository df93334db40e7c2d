"""CREAM: two networks that agree on a split into clean, hard and noisy pairs.

Ma et al., TIP 2024, as in its authors' code. `co_teaching.py` has the loop.

1. The warm-up trains InfoNCE on all pairs. Training continues from the warm-up model with the best
   validation rSum (the authors also require every recall to rise).
2. A Gaussian mixture splits the InfoNCE losses of each network. A pair is clean if both networks
   call it matched, noisy if neither does, and hard otherwise. Both networks train on the same
   subsets, with one update for each:
   - clean: label w + (1 - w) q, where w is the peer's probability that the pair is matched and
     q the network's own prediction;
   - hard, from `cream.hard_epoch` on, once over the subset in an epoch: the same with the mean of
     both probabilities;
   - noisy, from `cream.noisy_epoch` on: the mean prediction of both networks.
   The loss is `contrastive.soft_targets`, with the mean label of the three batches as cutoff,
   weighted by the sizes of the subsets. Clean pairs share nothing before `cream.hard_epoch`; where
   more than 0.85 of all pairs are clean, clean and hard ones share everything.

When the hard pairs of an epoch are used up, the authors keep predicting the last batch for the
cutoff. This code keeps the batch's last mean label, which differs only by the updates since then.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from l2rm_jax import mixture
from l2rm_jax.losses import contrastive
from l2rm_jax.methods import base
from l2rm_jax.methods.base import EpochPlan, Method, TrainState
from l2rm_jax.methods.co_teaching import (
    WEIGHT,
    CoTeaching,
    best_warmup,
    info_nce_losses,
    joined_metrics,
    make_co_teaching,
    probabilities,
)
from l2rm_jax.methods.ncr import clean_labels
from l2rm_jax.methods.pair_values import read_pair_values
from l2rm_jax.methods.registry import register_method
from l2rm_jax.methods.split import split_pairs

SUBSETS = ("clean", "hard", "noisy")
MOSTLY_CLEAN = 0.85  # above this share of clean pairs, clean and hard pairs share everything
SUBSET, HARD_LABEL = "subset", "hard_label"  # the subset of a pair; mean label of hard pairs
USES = dict(zip(SUBSETS, (base.DROPOUT_A, base.DROPOUT_B, base.DROPOUT_C), strict=True))


def make(model, config) -> Method:
    """Make CREAM for this model; raises `ConfigError` as `make_co_teaching`."""
    optimiser = base.model_optimiser(config)
    tau, warmup, hard_epoch = config.loss.tau, config.train.warmup_epochs, config.cream.hard_epoch

    def update(own: TrainState, peer: TrainState, batches: dict) -> tuple[TrainState, dict]:
        labels = labels_of(model, tau, own, peer, batches)
        means = {name: jnp.mean(label) for name, label in labels.items()}
        means.setdefault("hard", own.own[HARD_LABEL])
        own = own.replace(own={**own.own, HARD_LABEL: means["hard"]})
        sizes = subset_sizes(own)
        cutoff = cutoffs(means, sizes, own.epoch - warmup, hard_epoch)
        metrics = {}
        for name in (name for name in SUBSETS if name in batches):
            loss = partial(
                contrastive.soft_targets, labels=labels[name], cutoff=cutoff[name], tau=tau
            )
            own, metrics[name] = base.update_on(
                model, loss, optimiser, own, batches[name], USES[name]
            )
        return own, joined_metrics(metrics)

    parts = CoTeaching(
        warmup_loss=partial(contrastive.info_nce, tau=tau),
        pair_losses=partial(info_nce_losses, model, tau),
        split=partial(
            split_pairs,
            fit=mixture.fit_gaussian,
            call=lambda mismatched_posterior: mixture.above_threshold(1 - mismatched_posterior),
        ),
        subsets=_subsets,
        update=update,
        streams=dict.fromkeys(SUBSETS, 1),
        pair_values={WEIGHT: 1.0, SUBSET: 0.0},
        own={HARD_LABEL: 0.0},
        # Before they are trained on, noisy pairs are "seen": their labels count for the cutoff.
        starts={"hard": hard_epoch, "seen": hard_epoch, "noisy": config.cream.noisy_epoch},
        ends={"seen": config.cream.noisy_epoch},
        begin=partial(best_warmup, warmup),
        once=frozenset({"hard"}),
    )
    return make_co_teaching(model, config, optimiser, parts)


register_method("cream", make)


def labels_of(
    model, tau: float, own: TrainState, peer: TrainState, batches: Mapping
) -> dict[str, Float[Array, " B"]]:
    """Labels of each batch, by subset, including batches that are scored but not trained on."""
    labels = {}
    for name in ("clean", "hard"):
        if name in batches:
            pairs = batches[name]
            weight = read_pair_values(own, WEIGHT, pairs, model.axis_name)
            labels[name] = clean_labels(weight, probabilities(model, tau, own, pairs), "paper")
    for name in ("seen", "noisy"):
        if name in batches:
            pairs = batches[name]
            both = (probabilities(model, tau, state, pairs) for state in (own, peer))
            labels["noisy"] = sum(both) / 2
    return labels


def subset_sizes(state: TrainState) -> dict[str, Float[Array, ""]]:
    """Count the training pairs in each subset."""
    subset = state.own["pairs"][SUBSET]
    return {name: jnp.sum(subset == n, dtype=jnp.float32) for n, name in enumerate(SUBSETS)}


def cutoffs(
    means: Mapping[str, Float[Array, ""]],
    sizes: Mapping[str, Float[Array, ""]],
    since: Array,
    hard_epoch: int,
) -> dict[str, Float[Array, ""]]:
    """Smallest target that another candidate may have, for each subset.

    Args:
      means: mean label of the batch of each subset; one may be missing.
      sizes: number of pairs of each subset.
      since: epochs since the warm-up.
      hard_epoch: first such epoch that trains the hard pairs; before it, clean pairs share nothing.
    """
    total = sum(sizes[name] for name in means)
    mean = sum(sizes[name] * value for name, value in means.items()) / jnp.maximum(total, 1)
    clean = jnp.maximum((hard_epoch - since).astype(jnp.float32), mean)
    is_mostly_clean = sizes["clean"] > MOSTLY_CLEAN * sum(sizes.values())
    return {
        "clean": jnp.where(is_mostly_clean, 0.0, clean),
        "hard": jnp.where(is_mostly_clean, 0.0, mean),
        "noisy": mean,
    }


def subsets(one: np.ndarray, other: np.ndarray) -> dict[str, np.ndarray]:
    """Assign the pairs to subsets, `[N]` each, from the decisions of both networks, `[N]`."""
    called = [mixture.above_threshold(weight) for weight in (one, other)]
    clean, noisy = called[0] & called[1], ~called[0] & ~called[1]
    return {"clean": clean, "hard": called[0] ^ called[1], "noisy": noisy}


def _subsets(plan: EpochPlan, weight: np.ndarray, own: np.ndarray) -> EpochPlan:
    """Add the subsets of both networks and the label weights to the plan of a split."""
    members = subsets(own, weight)
    rows = {name: np.flatnonzero(member) for name, member in members.items()}
    streams = {name: rows[name] for name in SUBSETS if len(rows[name])}
    if "noisy" in streams:
        streams["seen"] = streams["noisy"]
    values = {
        WEIGHT: np.where(members["hard"], (weight + own) / 2, weight),
        SUBSET: sum(n * members[name] for n, name in enumerate(SUBSETS)),
    }
    return replace(plan, streams=streams, values=values)
