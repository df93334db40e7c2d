"""RCSL: learn from a few known pairs, and from pseudo-pairs among the unpaired images and captions.

Qin et al., "Robust Semi-paired Multimodal Learning for Cross-modal Retrieval", AAAI 2026. The
warm-up epochs are the learning stage of the paper, the later epochs its mining stage.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from l2rm_jax.data.mismatch import SEMI_PAIRED
from l2rm_jax.devices import parallel
from l2rm_jax.errors import ConfigError, Problems, check_names
from l2rm_jax.losses import semi_paired
from l2rm_jax.methods import base
from l2rm_jax.methods.base import EpochPlan, Method, TrainState
from l2rm_jax.methods.mining import SEARCHES, pseudo_pairs, recombine
from l2rm_jax.methods.registry import register_method
from l2rm_jax.methods.split import split, warmup_pairs

# Mined pairs that train, by the value of `rcsl.mining`: rows of the matrices of `_score`.
MINED = {"both": slice(0, 2), "images": slice(0, 1), "texts": slice(1, 2), "none": slice(0, 0)}
NAMES = {"search": SEARCHES, "mining": tuple(MINED)}


def make_rcsl(model, config) -> Method:
    """Make RCSL (Eq. 1), which trusts the known pairs of a semi-paired data set.

    The learning stage trains with Eq. 4. In the mining stage, new pseudo-pairs are searched before
    each epoch.

    Raises:
      ConfigError: the mismatch protocol has no known pairs, or a field of `rcsl` is invalid.
    """
    problems = Problems()
    problems.attempt(_require_known_pairs, config.mismatch.protocol)
    problems.attempt(check_names, "rcsl", config.rcsl, NAMES)
    problems.attempt(_require_a_loss, config.rcsl)
    problems.raise_all()
    score = partial(embed, model)  # the same function in every epoch, so it is compiled once

    def plan(score_pairs, dataset, epoch: int) -> EpochPlan:
        if epoch < config.train.warmup_epochs:
            share = config.rcsl.learning_share
            rows = recombine(dataset.paired, _generator(config, epoch), share)
            return EpochPlan({"learning": rows[:, None]})
        embeddings = score_pairs(score)
        return _mining_plan(config, dataset, epoch, dataset.paired, embeddings)

    return _make(model, config, plan)


def make_rcsl_nc(model, config) -> Method:
    """Make RCSL-NC, for data with mismatched pairs, which it treats as unpaired.

    Before each epoch after the warm-up, the beta mixture of L2RM or cross-fitting splits the pairs.
    The paper does not say how the warm-up trains. Here the warm-up treats its pairs (all of them,
    with the beta mixture) as pseudo-pairs, whose loss is robust to wrong pairs.

    Raises:
      ConfigError: a field of `rcsl` is invalid.
    """
    check_names("rcsl", config.rcsl, NAMES)
    _require_a_loss(config.rcsl)

    def score(state, batch) -> dict[str, Array]:
        hinges = base.pair_losses(model, config.loss.margin, state, batch)
        return {"hinge": hinges, **embed(model, state, batch)}

    def plan(score_pairs, dataset, epoch: int) -> EpochPlan:
        if epoch < config.train.warmup_epochs:
            pairs = warmup_pairs(config.split.by, dataset)
            return EpochPlan({"warmup": np.stack([pairs, pairs], axis=1)[:, None]})
        embeddings = score_pairs(score)
        hinges = embeddings.pop("hinge")
        sides = split(config.split.by, dataset, lambda: hinges)
        paired = np.isin(np.arange(len(dataset)), sides.streams.get("matched", ()))
        plan = _mining_plan(config, dataset, epoch, paired, embeddings)
        report = {**sides.report, **plan.report}
        return EpochPlan(plan.streams, report, sides.warnings, sides.split)

    return dataclasses.replace(_make(model, config, plan), splits=True)


register_method("rcsl", make_rcsl)
register_method("rcsl_nc", make_rcsl_nc)


def _require_known_pairs(protocol: str) -> None:
    if protocol != SEMI_PAIRED:
        raise ConfigError(
            f"method=rcsl requires known pairs, and mismatch.protocol={protocol} has none. Set "
            f"mismatch.protocol={SEMI_PAIRED} and mismatch.paired_images, or use method=rcsl_nc, "
            "which splits the pairs itself"
        )


def _require_a_loss(rcsl) -> None:
    if not rcsl.paired_loss and not rcsl.regulariser:
        raise ConfigError(
            "rcsl.paired_loss, rcsl.regulariser: found False for both, expected True for at least "
            "one, because the learning stage has no other loss"
        )


def _make(model, config, plan) -> Method:
    optimiser = base.model_optimiser(config)

    def step(state: TrainState, batch: dict) -> tuple[TrainState, dict]:
        [(stage, batches)] = batch.items()
        loss_fn = partial(_loss, model, config, state, stage, batches)
        return base.gradient_step(loss_fn, state, optimiser, model.axis_name)

    mining = partial(semi_paired.robust_mining, tau=config.rcsl.tau)

    def hinge_per_pair(sims):
        paired = jnp.ones(len(sims), bool)
        return semi_paired.paired_triplet(sims, paired, margin=config.loss.margin) / len(sims)

    learned = {}
    if config.rcsl.paired_loss:
        learned["learning"] = ("hinge_of_a_pair", hinge_per_pair)
    if mined := len(range(2)[MINED[config.rcsl.mining]]):
        learned["mining"] = ("loss_mining", lambda sims: mined * mining(sims))
    return Method(
        init=lambda key, batch: base.init_state(model, optimiser, key, batch),
        plan=plan,
        step=step,
        streams={"mining": 2},  # a batch of drawn pairs and a batch of their pseudo-pairs
        losses={"warmup": ("loss_mining", mining), **learned},
    )


def embed(model, state: TrainState, batch: Any) -> dict[str, Float[Array, "B D"]]:
    """Eval-mode unit vectors of the images and captions of the global batch, for the search."""
    variables = {"params": state.params, "batch_stats": state.batch_stats}
    images, captions = model.apply(variables, batch, method=_embed)
    return {"images": images, "captions": captions}


def _generator(config, epoch: int) -> np.random.Generator:
    """Random generator of an epoch."""
    return np.random.default_rng([config.seed, epoch])


def _mining_plan(
    config, dataset, epoch: int, paired: Bool[np.ndarray, " N"], embeddings: dict
) -> EpochPlan:
    """Plan an epoch of the mining stage (RCSL Eq. 7).

    Each row of the stream "mining" has two entries (pair of the image, pair of the caption). The
    first is an image I and a caption T of different unpaired pairs, combined at random. The second
    is (I', T'): the image that fits T best, and the caption that fits I best. For a known pair,
    both entries are the pair itself.
    """
    unpaired = np.flatnonzero(~paired)
    tau = config.rcsl.tau if config.rcsl.search == "transport" else None
    image_for, caption_for = pseudo_pairs(
        **embeddings, image_of=dataset.stored_image, unpaired=unpaired, transport_tau=tau
    )
    drawn = recombine(paired, _generator(config, epoch))
    mined = np.stack([image_for[drawn[:, 1]], caption_for[drawn[:, 0]]], axis=1)
    report = {}
    if len(unpaired) and not dataset.matched.all():  # otherwise the truth is unknown
        right = dataset.stored_image[image_for] == dataset.caption_image
        report["mined_images_right"] = float(np.mean(right[unpaired]))
        right = dataset.stored_image == dataset.caption_image[caption_for]
        report["mined_captions_right"] = float(np.mean(right[unpaired]))
    return EpochPlan({"mining": np.stack([drawn, mined], axis=1)}, report)


def _loss(
    model, config, state: TrainState, stage: str, batches: tuple, params
) -> tuple[Float[Array, ""], tuple[Any, dict]]:
    """Loss and metrics of one step.

    Stage "mining" is RCSL Eq. 1, "learning" is Eq. 4. The "warmup" of RCSL-NC is Eq. 6 and 8 over
    all pairs.
    """
    # The only loss of the similarities in the learning stage uses just the hardest negatives.
    scorer = model.clone(sparse_gradient=stage == "learning")
    (sims, images, captions), updated = scorer.apply(
        {"params": params, "batch_stats": state.batch_stats},
        *batches,
        method=_score,
        rngs={"dropout": base.step_key(state, base.DROPOUT_A)},
        mutable=["batch_stats"],
    )
    paired = parallel.global_rows(batches[0].pair_index >= 0, model.axis_name)
    terms = {}
    if config.rcsl.regulariser:
        product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
        uniformities = [semi_paired.uniformity(product(x, x.T)) for x in (images, captions)]
        terms["loss_alignment"] = semi_paired.alignment(product(images, captions.T), paired)
        terms["loss_uniformity"] = sum(uniformities) / 2
    if stage != "warmup" and config.rcsl.paired_loss:
        # Known pairs are in both batches of Eq. 7, with equal similarities for all heads but SAF,
        # whose batch norm depends on the rest of the batch. The first batch is enough.
        margin = config.loss.margin
        terms["loss_paired"] = semi_paired.paired_triplet(sims[0], paired, margin=margin)
    mined = sims[MINED[config.rcsl.mining]] if stage == "mining" else sims
    if stage != "learning" and mined:
        tau = config.rcsl.tau
        terms["loss_mining"] = sum(semi_paired.robust_mining(each, tau=tau) for each in mined)
    loss = sum(terms.values())
    metrics = {"loss": loss, **terms}
    if (
        stage == "learning" and config.rcsl.paired_loss
    ):  # a mean, because the number of known pairs differs between batches
        metrics["hinge_of_a_pair"] = terms["loss_paired"] / jnp.maximum(
            jnp.sum(paired, dtype=jnp.float32), 1
        )
    return loss, (updated.get("batch_stats", {}), metrics)


def _embed(model, batch):
    if batch.vectors is None:
        return base.unit_vectors(model, *model.encode(batch))
    vectors = model.embed_images(batch), model.embed_captions(batch)
    return tuple(parallel.global_rows(x, model.axis_name) for x in vectors)


def _score(model, drawn, mined=None) -> tuple[tuple, Float[Array, "B D"], Float[Array, "B D"]]:
    """Train-mode similarities of the global batch, and the unit vectors of `drawn`.

    Args:
      model: the model, inside `apply`.
      drawn: images and captions as an epoch combines them.
      mined: best images and captions for the entries of `drawn`, in the mining stage.

    Returns:
      A tuple of similarity matrices; unit vectors of the images; unit vectors of the captions.
      Without `mined` there is one matrix, of `drawn`. With `mined` there are the two of RCSL
      Eq. 7: outside the known pairs, the first has the mined images and the second the mined
      captions.
    """
    images, texts = model.encode(drawn, train=True)
    embeddings = base.unit_vectors(model, images, texts)
    if mined is None:
        return ((model.similarity_across_devices(images, texts, True),), *embeddings)
    mined_images, mined_texts = model.encode(mined, train=True)
    paired = drawn.pair_index >= 0
    sims = (
        model.similarity_across_devices(_select_rows(paired, images, mined_images), texts, True),
        model.similarity_across_devices(images, _select_rows(paired, texts, mined_texts), True),
    )
    return (sims, *embeddings)


def _select_rows(mask: Bool[Array, " B"], kept, replacement):
    """Take rows of `kept` where the mask is True, else of `replacement`; both trees of arrays."""
    return jax.tree.map(
        lambda x, y: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, y), kept, replacement
    )
