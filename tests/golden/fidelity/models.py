"""Encoders, SGR and SAF with the authors' weights: codes, similarities, gradients, recalls."""

from collections import ChainMap
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax import config as defaults
from l2rm_jax.devices.batch import Batch
from l2rm_jax.evaluation import recall
from l2rm_jax.losses import ranking
from l2rm_jax.models import RetrievalModel, make_model
from l2rm_jax.models.encoders import RegionEncoder, WordEncoder
from l2rm_jax.published.conversion import (
    linear_from_state_dict,
    model_from_state_dict,
    variables_from_state_dict,
    words_from_state_dict,
)
from tests.golden.fidelity.arrays import (
    NOISE_MARGIN,
    Arrays,
    difference,
    largest,
    largest_entry,
    tree_difference,
)

MARGIN = 0.2  # the margin of the stored triplet losses


def model_of(head: str, weights: Mapping, **fields) -> RetrievalModel:
    """Return a model with a head, as large as the weights; fields of the config by their key."""
    vocabulary_size, word_dim = weights["txt_enc.embed.weight"].shape
    config = defaults.default()
    sizes = {"model.embed_dim": len(weights["img_enc.fc.weight"]), "model.word_dim": word_dim}
    model = {"model.head": head, "model.dropout": 0.0}
    config.update_from_flattened_dict({**sizes, **model, **fields})
    return make_model(config, vocabulary_size)


def batch_of(arrays: Mapping, lengths: str = "lengths") -> Batch:
    """Return the stored images, of as many regions each, and captions."""
    images, tokens, lengths = (arrays[f"in/{name}"] for name in ("images", "captions", lengths))
    return Batch(images, np.full(len(images), images.shape[1]), tokens, lengths)


@partial(jax.jit, static_argnums=0)
def encode(model, variables, batch):
    """Return the codes of images and captions in eval mode."""
    return model.apply(variables, batch, method="encode")


@partial(jax.jit, static_argnums=0)
def score(model, variables, image_code, text_code):
    return model.apply(variables, image_code, text_code, method="similarity")


@partial(jax.jit, static_argnums=0)
def train_pass(model, variables, batch, cotangent):
    """Return similarities and collections in train mode, and the parameters' gradient.

    The gradient is that of `sum(cotangent * sims)`, so one compiled program serves any loss: its
    gradient with respect to the similarities is the cotangent. The collections hold the new running
    statistics, and the codes as intermediates.
    """

    def sims_of(params):
        return model.apply(
            {**variables, "params": params},
            batch,
            train=True,
            method="global_similarity",
            mutable=["batch_stats", "intermediates"],
            capture_intermediates=lambda _, name: name in ("encode_images", "encode_captions"),
        )

    sims, pull_back, collections = jax.vjp(sims_of, variables["params"], has_aux=True)
    return sims, collections, pull_back(cotangent)[0]


class TrainMode:
    """A model in train mode with the weights and inputs of a file."""

    def __init__(self, arrays: Arrays):
        weights = arrays.under("w/")
        # Eight captions in chunks of three: the last chunk is not full.
        model = model_from_state_dict(weights, dropout=0.0, chunk=3)
        self._run = partial(train_pass, model, variables_from_state_dict(weights))
        self._batch = batch_of(arrays)
        size = (len(self._batch.images), len(self._batch.tokens))
        self.sims, self.collections, _ = self._run(self._batch, jnp.zeros(size))

    def gradients(self, loss):
        """Return the gradient of `loss(sims)` with respect to the parameters."""
        return self._run(self._batch, jax.grad(loss)(self.sims))[2]


def encoders(arrays: Arrays) -> None:
    weights, out = arrays.under("w/"), arrays.under("out/")
    images, _, tokens, lengths, *_ = batch_of(arrays)
    vocabulary_size, word_dim = weights["txt_enc.embed.weight"].shape
    embed_dim = weights["img_enc.fc.weight"].shape[0]
    mask = (np.arange(tokens.shape[1]) < lengths[:, None]).astype(np.float32)

    def words(params, normalise=True):
        encoder = WordEncoder(vocabulary_size, word_dim, embed_dim, 0.0, normalise=normalise)
        return encoder.apply({"params": params}, tokens, mask, False)

    projection = {"projection": linear_from_state_dict(weights, "img_enc.fc")}
    params = words_from_state_dict(weights)
    for normalise, suffix in ((True, ""), (False, "_nonorm")):
        regions = RegionEncoder(embed_dim, normalise).apply({"params": projection}, images)
        out.check("regions", regions, f"img_emb{suffix}")
        out.check("words", words(params, normalise), f"cap_emb{suffix}")

    # The one-directional GRU has other weights. With zero weights the reverse direction outputs
    # zeros, so the mean of both is half of the first, and the normalisation removes the half.
    single = arrays.under("uni_w/")
    reverse = {f"{key}_reverse": np.zeros_like(single[key]) for key in single if "cap_rnn" in key}
    out.check("words", words(words_from_state_dict(ChainMap(single, reverse))), "cap_emb_uni")


def similarity(arrays: Arrays) -> None:
    weights, batch, out = arrays.under("w/"), batch_of(arrays), arrays.under("out/eval/")
    variables = variables_from_state_dict(weights)
    model = model_from_state_dict(weights, dropout=0.0, chunk=3)
    fresh = jax.eval_shape(model.init, jax.random.key(0), batch)
    is_equal = jax.tree.map(jnp.shape, fresh) == jax.tree.map(np.shape, variables)
    out.add("parameter tree", 0.0 if is_equal else np.inf)

    codes = image_code, text_code = encode(model, variables, batch)
    out.check("codes", image_code.regions, "img_emb")
    out.check("codes", text_code.words, "cap_emb")
    out.check("codes", image_code.overall, "img_glo")
    out.check("codes", text_code.overall, "cap_glo")
    sims = score(model, variables, *codes)
    out.check("similarities, eval", sims, "sims")
    out.check("similarities, eval", np.diag(sims), "sims_individual")
    some = jax.tree.map(lambda x: x[: len(out["sims_rect"])], image_code)
    out.check("similarities, eval", score(model, variables, some, text_code), "sims_rect")
    _check_training_mode(arrays)


def _check_training_mode(arrays: Arrays) -> None:
    weights, out = arrays.under("w/"), arrays.under("out/train/")
    run = TrainMode(arrays)
    codes = run.collections["intermediates"]
    out.check("codes", codes["encode_images"][0].overall, "img_glo")
    out.check("codes", codes["encode_captions"][0].overall, "cap_glo")
    out.check("similarities, train", run.sims, "sims")
    for after in ("bn_after/", "bn_after_f64/"):
        theirs = variables_from_state_dict(ChainMap(out.under(after), weights))["batch_stats"]
        out.add("running statistics", tree_difference(run.collections["batch_stats"], theirs))
    loss = partial(ranking.triplet_hardest, margin=MARGIN)
    out.check("triplet loss, relative", loss(run.sims), "loss_max_violation")
    theirs = variables_from_state_dict(ChainMap(arrays.under("grad/"), weights))["params"]
    # The difference between the authors' float32 and float64 runs. A gradient that is zero by
    # construction consists of nothing else.
    noise = arrays.under("grad_noise/")
    noise = {key: np.broadcast_to(noise.get(key, 0.0), x.shape) for key, x in weights.items()}
    noise = variables_from_state_dict(noise)["params"]
    error = partial(_gradient_difference, scale=largest_entry(theirs))
    errors = jax.tree.map(error, run.gradients(loss), theirs, noise)
    out.add("gradients, each / its largest", largest(jax.tree.leaves(errors)))


def _gradient_difference(ours, theirs, noise, scale: float) -> float:
    """Return the difference beyond the authors' noise, divided by their largest entry.

    Where their gradient is nothing but noise, because it is zero by construction, the difference is
    divided by `scale` instead, the largest gradient of all parameters.

    The noise counts as at least one unit in the last place of `scale` (float32), since the stored
    noise is a single sample. Where a gradient is a ten-thousandth of the others, processors differ
    by the rounding of the others: a CPU without AVX-512 was 0.52 units off in a gradient of 5e-4
    beside one of 33.
    """
    rounding = float(np.finfo(np.float32).eps) * scale
    most, noise = float(np.abs(theirs).max()), max(NOISE_MARGIN * float(np.max(noise)), rounding)
    beyond = difference(ours, theirs) - noise
    return beyond / (most if most > noise else scale)


def gradient_error(ours, given: Mapping, weights: Mapping) -> float:
    """Return the largest difference over the largest entry, for the parameters in `given`."""
    theirs = variables_from_state_dict(ChainMap(given, weights))["params"]
    is_given = {key: np.full(x.shape, key in given) for key, x in weights.items()}
    is_given = jax.tree.leaves(variables_from_state_dict(is_given)["params"])
    leaves = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), is_given, strict=True)
    ours, theirs, _ = zip(*(each for each in leaves if np.all(each[2])), strict=True)
    return tree_difference(ours, theirs, relative=True)


def evaluation(arrays: Arrays) -> None:
    batch = batch_of(arrays)
    per_image = len(batch.tokens) // len(batch.images)
    heads, total = ("SGR", "SAF"), 0.0
    for name in heads:
        weights, out = arrays.under(f"w_{name}/"), arrays.under(f"out/{name}/")
        model = model_from_state_dict(weights, dropout=0.0, chunk=7)
        variables = variables_from_state_dict(weights)
        sims = np.asarray(score(model, variables, *encode(model, variables, batch)))
        out.check("similarities", sims, "sims")
        _check_recalls(out, sims, per_image)
        total = total + sims
    _check_recalls(arrays.under("out/SGRAF/"), total / len(heads), per_image)


def metrics(arrays: Arrays) -> None:
    for case in arrays.cases("sims"):
        out = arrays.under(f"{case}/")
        sims = out["sims"]
        per_image = sims.shape[1] // sims.shape[0]
        for prefix in ("", "rcsl_"):
            _check_recalls(out, sims, per_image, prefix)
        image_of = np.arange(sims.shape[1]) // per_image
        ranks = {
            "i2t": recall.text_ranks(sims, per_image),
            "t2i": recall.image_ranks(sims, per_image),
        }
        first = {
            "i2t": image_of[out["i2t_top1"].astype(int)] == np.arange(len(sims)),
            "t2i": out["t2i_top1"].astype(int) == image_of,
        }
        for way, ours in ranks.items():
            out.add("ranks that differ", np.sum(ours != out[f"{way}_ranks"]))
            out.add("ranks that differ", np.sum((ours == 0) != first[way]))


def _check_recalls(out: Arrays, sims, per_image: int, prefix: str = "") -> None:
    """Compare R@1, R@5, R@10, median and mean rank, both ways."""
    row = recall.recalls(sims, per_image)
    names = ("r1", "r5", "r10", "median", "mean")
    for way in ("i2t", "t2i"):
        out.check("recalls and ranks", [row[f"{way}_{name}"] for name in names], f"{prefix}{way}")
