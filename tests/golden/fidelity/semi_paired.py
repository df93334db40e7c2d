"""RCSL: model, losses with gradients, and one whole training step of the mining stage."""

from collections.abc import Mapping
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax import config as defaults
from l2rm_jax.devices.batch import Batch
from l2rm_jax.losses import semi_paired
from l2rm_jax.methods import make_method
from l2rm_jax.models import RetrievalModel
from l2rm_jax.models.layers import BatchNorm
from l2rm_jax.published.conversion import linear_from_state_dict, words_from_state_dict
from tests.golden.fidelity.arrays import Arrays, difference, largest
from tests.golden.fidelity.losses import value_and_gradient
from tests.golden.fidelity.models import model_of

NORM = ("weight", "bias", "running_mean", "running_var")
# The defaults of the authors' code.
LEARNING_RATE, WEIGHT_DECAY, GRAD_CLIP, MARGIN, TAU = 5e-4, 1e-2, 2.0, 0.2, 0.03


def rcsl(arrays: Arrays) -> None:
    weights = arrays.under("w/")
    model, variables = model_of("aggregate", weights), _variables(weights)
    batches = [_batch(arrays, number) for number in (0, 1)]
    for number, batch in enumerate(batches):
        out = arrays.under(f"out/eval/{number}/")
        images, captions, sims = _evaluate(model, variables, batch)
        out.check("embeddings", images, "img_emb")
        out.check("embeddings", captions, "cap_emb")
        out.check("similarities", sims, "sims")
        if number == 0:
            _check_regularisation(arrays, images, captions)
    _check_losses(arrays.under("loss/"))
    _check_step(arrays, model, variables, batches)


@partial(jax.jit, static_argnums=0)
def _evaluate(model: RetrievalModel, variables: dict, batch: Batch) -> tuple:
    images, texts = model.apply(variables, batch, method="encode")
    sims = model.apply(variables, images, texts, method="similarity")
    return images.overall, texts.overall, sims


def _check_regularisation(arrays: Arrays, images, captions) -> None:
    out, paired = arrays.under("loss/"), jnp.asarray(arrays["in/labels"] == 1)
    ours = {
        "lalign": semi_paired.alignment(images @ captions.T, paired),
        "lunif_img": semi_paired.uniformity(images @ images.T),
        "lunif_cap": semi_paired.uniformity(captions @ captions.T),
    }
    for name, value in ours.items():
        out.check("losses, relative", value, name)


def _check_losses(out: Arrays) -> None:
    paired = jnp.arange(len(out["sims"])) < out["paired_l"]
    functions = {
        f"robust_mining_tau{tau}": partial(semi_paired.robust_mining, tau=tau)
        for tau in (0.02, 0.03, 0.05)
    }
    functions["contrastive"] = partial(semi_paired.paired_triplet, paired=paired, margin=MARGIN)
    sims = jnp.asarray(out["sims"])
    out.check_losses({name: value_and_gradient(f, sims) for name, f in functions.items()}, "grad")


def _check_step(arrays: Arrays, model: RetrievalModel, variables: dict, batches: list) -> None:
    out = arrays.under("step/")
    labels = arrays["in/labels"] == 1
    rows = np.arange(len(labels), dtype=np.int32)
    own = batches[0]._replace(pair_index=np.where(labels, rows, -1))
    config = defaults.default()
    config.method = "rcsl"
    config.mismatch.protocol = "semi_paired"
    config.rcsl.tau, config.loss.margin = TAU, MARGIN
    config.optim.learning_rate, config.optim.weight_decay = LEARNING_RATE, WEIGHT_DECAY
    config.optim.grad_clip = GRAD_CLIP
    method = make_method(model, config)
    state = method.init(jax.random.key(0), own)
    state = state.replace(**jax.tree.map(jnp.asarray, variables))
    with nn.intercept_methods(_count_padding):
        state, metrics = jax.jit(method.step)(state, {"mining": (own, batches[1])})
    regular = metrics["loss_alignment"] + metrics["loss_uniformity"]
    ours = {
        "loss": metrics["loss"],
        "loss_paired": metrics["loss_paired"],
        "loss_rcm": metrics["loss_mining"],
        "loss_reg": regular,
    }
    for name, value in ours.items():
        out.check("losses of the step, relative", value, name)

    # Adam's first moment after one update is a tenth of the clipped gradient.
    _, adam = state.opt_state
    theirs = _stored(out.under("grad_clipped/"), arrays.under("w/"))["params"]
    most = largest(np.nanmax(np.abs(x)) for x in jax.tree.leaves(theirs))
    errors = jax.tree.map(lambda moment, x: known_difference(10 * moment, x), adam.mu, theirs)
    out.add("gradients of the step / largest", largest(jax.tree.leaves(errors)) / most)

    after = _stored(out.under("after/"), arrays.under("w/"))
    ours = {"params": state.params, "batch_stats": state.batch_stats}
    errors = jax.tree.map(known_difference, ours, after)
    # Batch normalisation follows this bias, so its gradient is noise. Adam turns noise into steps
    # as long as any other.
    noise = errors["params"]["image_encoder"]["hidden"].pop("bias")
    out.add("a bias without gradient, in steps", noise / LEARNING_RATE)
    out.add("weights after", largest(jax.tree.leaves(errors)))


def _count_padding(call, args, kwargs, context):
    """Make batch normalisation count padding up to the longest image, as the authors' code does."""
    if isinstance(context.module, BatchNorm) and context.method_name == "__call__":
        x, train, mask = args
        return call(x, train, mask.max(axis=0, keepdims=True))
    return call(*args, **kwargs)


def _batch(arrays: Arrays, number: int) -> Batch:
    """Return a stored batch, both batches padded to the same number of regions and words."""
    stored = arrays.under(f"in/{number}/")

    def padded(name: str) -> np.ndarray:
        most = max(arrays[f"in/{each}/{name}"].shape[1] for each in (0, 1))
        widths = [(0, 0), (0, most - stored[name].shape[1]), (0, 0)]
        return np.pad(stored[name], widths[: stored[name].ndim])

    images, captions = padded("images"), padded("captions")
    regions, lengths = (stored[f"{name}_lengths"].astype(int) for name in ("image", "caption"))
    rows = np.arange(len(images))
    return Batch(images, regions, captions, lengths, pair_index=rows, image_index=rows)


def _variables(weights: Mapping) -> dict:
    """Return our variables from arrays with the names of the authors' parameters."""
    linear = partial(linear_from_state_dict, weights)
    norm = {key: weights[f"img_enc.mlp.bns.0.{key}"] for key in NORM}
    words = {name.replace("rnn.", "cap_rnn."): weights[name] for name in weights}
    image = {
        "projection": linear("img_enc.fc"),
        "hidden": linear("img_enc.mlp.layers.0"),
        "residual": linear("img_enc.mlp.layers.1"),
        "norm": {"scale": norm["weight"], "bias": norm["bias"]},
        "aggregator": {"kernel": weights["img_enc.linear1.weight"].T},
    }
    text = {
        "words": words_from_state_dict(words),
        "aggregator": {"kernel": weights["txt_enc.linear1.weight"].T},
    }
    running = {"mean": norm["running_mean"], "var": norm["running_var"]}
    return {
        "params": {"image_encoder": image, "text_encoder": text},
        "batch_stats": {"image_encoder": {"norm": running}},
    }


def _stored(given: Mapping, weights: Mapping) -> dict:
    """Return our variables from the arrays in `given`, with NaN for the others."""
    absent = {name: np.full(np.shape(x), np.nan) for name, x in weights.items()}
    return _variables({**absent, **given})


def known_difference(ours, theirs) -> float:
    return 0.0 if np.isnan(theirs).all() else difference(ours, theirs)
