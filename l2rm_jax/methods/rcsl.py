"""RCSL: learn from a few known pairs, and from pseudo-pairs of images and captions without one.

Qin et al., "Robust Semi-paired Multimodal Learning for Cross-modal Retrieval", AAAI 2026. The
warm-up epochs are the paper's learning stage, the others its mining stage.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from l2rm_jax.data.mismatch import SEMI_PAIRED
from l2rm_jax.devices import parallel
from l2rm_jax.errors import ConfigError, Problems, check_names
from l2rm_jax.losses import ranking, semi_paired
from l2rm_jax.methods import base
from l2rm_jax.methods.base import EpochPlan, Method, TrainState
from l2rm_jax.methods.mining import SEARCHES, couple, pseudo_pairs
from l2rm_jax.methods.registry import register_method
from l2rm_jax.methods.split import split_pairs
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import l2_normalise, masked_mean

NAMES = {"search": SEARCHES}


def make_rcsl(model, config) -> Method:
    """RCSL (Eq. 1): the pairs that the data set calls paired are trusted, the others searched.

    Learning trains with Eq. 4; from the first mining epoch on, the pseudo-pairs are found anew
    before each epoch.

    Raises:
      ConfigError: the data would not say which pairs these are; an unknown `rcsl.search`.
    """
    problems = Problems()
    problems.attempt(_require_told, config.mismatch.protocol)
    problems.attempt(check_names, "rcsl", config.rcsl, NAMES)
    problems.raise_all()
    score = partial(embed, model)  # one function, compiled once

    def plan(score_pairs, dataset, epoch: int) -> EpochPlan:
        if epoch < config.train.warmup_epochs:
            share = config.rcsl.learning_share
            rows = couple(dataset.paired, _generator(config, epoch), share)
            return EpochPlan({"learning": rows[:, None]})
        codes = score_pairs(score)
        return _mining_plan(config, dataset, epoch, dataset.paired, codes)

    return _make(model, config, plan)


def make_rcsl_nc(model, config) -> Method:
    """RCSL-NC, for pairs some of which are mismatched: those are treated as unpaired.

    The paper leaves open how the warm-up trains: here all pairs are pseudo-pairs, whose loss bears
    wrong ones. Before each later epoch the beta mixture of L2RM splits the pairs.

    Raises:
      ConfigError: an unknown `rcsl.search`.
    """
    check_names("rcsl", config.rcsl, NAMES)

    def score(state, batch) -> dict[str, Array]:
        hinges = ranking.per_pair_hinge(
            base.evaluate(model, state, batch), margin=config.loss.margin
        )
        return {"hinge": hinges, **embed(model, state, batch)}

    def plan(score_pairs, dataset, epoch: int) -> EpochPlan:
        everything = np.arange(len(dataset))
        if epoch < config.train.warmup_epochs:
            return EpochPlan({"warmup": np.stack([everything, everything], axis=1)[:, None]})
        found = score_pairs(score)
        split = split_pairs(found.pop("hinge"), dataset.matched)
        paired = np.isin(everything, split.streams.get("matched", ()))
        plan = _mining_plan(config, dataset, epoch, paired, found)
        return EpochPlan(plan.streams, {**split.report, **plan.report}, split.warnings)

    return _make(model, config, plan)


register_method("rcsl", make_rcsl)
register_method("rcsl_nc", make_rcsl_nc)


def _require_told(protocol: str) -> None:
    if protocol != SEMI_PAIRED:
        raise ConfigError(
            f"method: rcsl trusts the pairs that it is told of, and mismatch.protocol={protocol} "
            f"tells of none; expected {SEMI_PAIRED}, with mismatch.paired_images, or the method "
            "rcsl_nc, which splits the pairs itself"
        )


def _make(model, config, plan) -> Method:
    optimiser = base.model_optimiser(config)

    def step(state: TrainState, batch: dict) -> tuple[TrainState, dict]:
        [(stage, batches)] = batch.items()
        loss_fn = partial(_loss, model, config, state, stage, batches)
        return base.gradient_step(loss_fn, state, optimiser, model.axis_name)

    mining = partial(semi_paired.robust_mining, tau=config.rcsl.tau)

    def of_a_pair(sims):
        pairs = jnp.ones(len(sims), bool)
        return semi_paired.paired_triplet(sims, pairs, margin=config.loss.margin) / len(sims)

    return Method(
        init=lambda key, batch: base.init_state(model, optimiser, key, batch),
        plan=plan,
        step=step,
        streams={"mining": 2},  # two couples a row
        losses={
            "warmup": ("loss_mining", mining),
            "learning": ("hinge_of_a_pair", of_a_pair),
            "mining": ("loss_mining", lambda sims: 2 * mining(sims)),
        },
    )


def embed(model, state: TrainState, batch: Any) -> dict[str, Float[Array, "B D"]]:
    """Eval-mode unit vectors of the images and captions of the global batch."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    images, captions = model.apply(variables, batch, method=_embed)
    return {"images": images, "captions": captions}


def _generator(config, epoch: int) -> np.random.Generator:
    return np.random.default_rng([config.seed, epoch])


def _mining_plan(
    config, dataset, epoch: int, paired: Bool[np.ndarray, " N"], codes: dict
) -> EpochPlan:
    """Rows of two couples: an image and a caption, and what was found for them (RCSL Eq. 7).

    For an unpaired image I and caption T these are (I, T), drawn at random, and (I', T'): the image
    found for T and the caption found for I. For a pair, both are the pair.
    """
    unpaired = np.flatnonzero(~paired)
    tau = config.rcsl.tau if config.rcsl.search == "transport" else None
    image_for, caption_for = pseudo_pairs(
        **codes, image_of=dataset.stored_image, unpaired=unpaired, transport_tau=tau
    )
    own = couple(paired, _generator(config, epoch))
    found = np.stack([image_for[own[:, 1]], caption_for[own[:, 0]]], axis=1)
    report = {}
    if len(unpaired) and not dataset.matched.all():  # else nothing is known of which are right
        right = dataset.stored_image[image_for] == dataset.caption_image
        report["mined_images_right"] = float(np.mean(right[unpaired]))
        right = dataset.stored_image == dataset.caption_image[caption_for]
        report["mined_captions_right"] = float(np.mean(right[unpaired]))
    return EpochPlan({"mining": np.stack([own, found], axis=1)}, report)


def _loss(
    model, config, state: TrainState, stage: str, batches: tuple, params
) -> tuple[Float[Array, ""], tuple[Any, dict]]:
    """RCSL Eq. 1 (mining), Eq. 4 (learning), or Eq. 6 and 8 of all pairs (warm-up of RCSL-NC)."""
    # Learning has one loss of the similarities, which gives the hardest negatives alone a slope.
    scorer = model.clone(sparse_gradient=stage == "learning")
    (sims, images, captions), updated = scorer.apply(
        {"params": params, "batch_stats": state.batch_stats},
        *batches,
        method=_score,
        rngs={"dropout": base.step_key(state, base.DROPOUT_A)},
        mutable=["batch_stats"],
    )
    paired = parallel.global_rows(batches[0].pair_index >= 0, model.axis_name)
    product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    uneven = [semi_paired.uniformity(product(x, x.T)) for x in (images, captions)]
    terms = {
        "loss_alignment": semi_paired.alignment(product(images, captions.T), paired),
        "loss_uniformity": sum(uneven) / 2,
    }
    if stage != "warmup":
        # Both batches of Eq. 7 have the paired part; SAF alone sees it among other images.
        margin = config.loss.margin
        terms["loss_paired"] = semi_paired.paired_triplet(sims[0], paired, margin=margin)
    if stage != "learning":
        tau = config.rcsl.tau
        terms["loss_mining"] = sum(semi_paired.robust_mining(each, tau=tau) for each in sims)
    loss = sum(terms.values())
    metrics = {"loss": loss, **terms}
    if stage == "learning":  # the number of pairs differs between batches, and with it their sum
        metrics["hinge_of_a_pair"] = terms["loss_paired"] / jnp.maximum(jnp.sum(paired), 1)
    return loss, (updated.get("batch_stats", {}), metrics)


def _encode(model, batch, train: bool = False):
    images = model.encode_images(batch.images, batch.regions, train)
    return images, model.encode_captions(batch.tokens, batch.lengths, train)


def _embed(model, batch):
    return _embeddings(model, *_encode(model, batch))


def _score(model, own, found=None) -> tuple[tuple, Float[Array, "B D"], Float[Array, "B D"]]:
    """Train-mode similarities of the global batch, and the unit vectors of `own`.

    Without `found`, those of `own`. With it, those of the two batches of RCSL Eq. 7: the rows
    without a pair have their image, then their caption, replaced by what was found for them.
    """
    images, texts = _encode(model, own, train=True)
    embeddings = _embeddings(model, images, texts)
    if found is None:
        return ((model.similarity_of_all(images, texts, True),), *embeddings)
    found_images, found_texts = _encode(model, found, train=True)
    paired = own.pair_index >= 0
    sims = (
        model.similarity_of_all(_choose(paired, images, found_images), texts, True),
        model.similarity_of_all(images, _choose(paired, texts, found_texts), True),
    )
    return (sims, *embeddings)


def _embeddings(model, images: ImageCode, texts: TextCode):
    """A unit vector for each image and caption of all devices: those whose products are the
    similarities, or for a head that compares regions with words the global vectors, or the mean."""
    if model.is_product:
        head = model.similarity_head
        own = head.embed_images(images), head.embed_texts(texts)
    else:
        own = (
            l2_normalise(masked_mean(local, code.mask)) if code.overall is None else code.overall
            for code, local in ((images, images.regions), (texts, texts.words))
        )
    return tuple(parallel.global_rows(x, model.axis_name) for x in own)


def _choose(rows: Bool[Array, " B"], those, others):
    """`those` in these rows, `others` in the rest, in trees of arrays."""
    return jax.tree.map(
        lambda x, y: jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y), those, others
    )
