"""BiCro: two networks that split for each other; labels by how well images and captions agree.

Yang et al., "BiCro: Noisy Correspondence Rectification for Multi-modality Data via Bi-directional
Cross-modal Similarity Consistency", CVPR 2023. `co_teaching.py` has the loop.

1. The warm-up trains the mean-negatives triplet loss on the 30% of each batch with the smallest
   losses.
2. Then a beta mixture splits the losses of each network, and the other network trains on the two
   sides. The fit is the one of L2RM: it runs to convergence and clips the losses that it scores.
3. The peer sets the labels: the best pairs of a matched batch are anchors. A pair has a high label
   if its image is as similar to an anchor's image as its caption is to that anchor's caption.
4. Each step makes one update on matched pairs. From `co_teaching.mismatched_epoch` on (the authors:
   half of the epochs), an update on mismatched pairs precedes it. The loss is the triplet loss of
   the hardest negatives, with a margin that grows with the label.

`co_teaching.margins=code` follows the public code, which differs from the paper: labels of the
matched pairs land on other pairs, and the label of a caption's pair sets the margin in both
directions.
"""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.losses import consistency, ranking
from l2rm_jax.methods import base
from l2rm_jax.methods.base import Method, TrainState
from l2rm_jax.methods.co_teaching import (
    CoTeaching,
    joined_metrics,
    make_co_teaching,
    soft_triplet,
)
from l2rm_jax.methods.registry import register_method
from l2rm_jax.methods.split import split_pairs

WARMUP_SHARE = 0.3  # of a batch: the pairs with the smallest losses, which the warm-up trains on


def make(model, config) -> Method:
    """Make BiCro for this model; raises `ConfigError` as `make_co_teaching`."""
    margin, optimiser = config.loss.margin, base.model_optimiser(config)

    def update(own: TrainState, peer: TrainState, batches: dict) -> tuple[TrainState, dict]:
        given = labels(model, config, peer, batches)
        uses = {"mismatched": base.DROPOUT_B, "matched": base.DROPOUT_A}  # in this order
        metrics = {}
        for stream in (name for name in uses if name in given):
            loss = soft_triplet(config, given[stream])
            pairs = batches[stream]
            own, metrics[stream] = base.update_on(model, loss, optimiser, own, pairs, uses[stream])
        return own, joined_metrics(metrics)

    parts = CoTeaching(
        warmup_loss=partial(warmup_loss, margin=margin),
        pair_losses=partial(base.pair_losses, model, margin),
        split=split_pairs,
        subsets=lambda plan, weight, own: plan,
        update=update,
        streams={"matched": 1, "mismatched": 1},
        starts={"mismatched": config.co_teaching.mismatched_epoch},
    )
    return make_co_teaching(model, config, optimiser, parts)


register_method("bicro", make)


def warmup_loss(sims: Float[Array, "B B"], *, margin: float) -> Float[Array, ""]:
    """Mean-negatives triplet loss of the pairs of a batch with the smallest losses, summed."""
    return ranking.smallest(ranking.per_pair_hinge(sims, margin=margin), WARMUP_SHARE)


def labels(model, config, peer: TrainState, batches: dict) -> dict[str, Float[Array, "..."]]:
    """Compute the peer's labels for the pairs of each stream, in [0, 1].

    `[B]` of the pairs; `[B, B]` of all entries with `co_teaching.margins=code`. Without a matched
    batch there are no anchors, and so no labels.
    """
    if "matched" not in batches:
        return {}
    margin = config.loss.margin
    sims = base.evaluate(model, peer, batches["matched"])
    vectors = {name: base.mean_vectors(model, peer, batch) for name, batch in batches.items()}
    rest, anchors = consistency.order_by_sureness(sims, margin=margin)
    of_anchors = [side[anchors] for side in vectors["matched"]]
    found = {name: consistency.consistency(*own, *of_anchors) for name, own in vectors.items()}
    if config.co_teaching.margins == "code":
        given = {"matched": consistency.misplaced_labels(found["matched"], rest)}
    else:
        given = {"matched": consistency.matched_labels(found["matched"], anchors)}
    if "mismatched" in found:
        given["mismatched"] = consistency.mismatched_labels(found["mismatched"])
    if config.co_teaching.margins == "code":
        given = {name: _by_column(label) for name, label in given.items()}
    return given


def _by_column(label: Float[Array, " B"]) -> Float[Array, "B B"]:
    """Use the label of each caption in both directions, as the authors' code does."""
    return jnp.broadcast_to(label[None, :], (len(label), len(label)))
