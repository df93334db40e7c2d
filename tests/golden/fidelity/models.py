"""Encoders and heads with the authors' weights and inputs: codes, similarities, gradients."""

from collections import ChainMap
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax.evaluation.recall import recalls
from l2rm_jax.losses import ranking
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
    Errors,
    both_precisions,
    difference,
    largest,
    tree_difference,
)

MARGIN = 0.2  # the margin of the stored triplet losses


def inputs_of(arrays: Mapping) -> tuple:
    return tuple(arrays[f"in/{name}"] for name in ("images", "captions", "lengths"))


@partial(jax.jit, static_argnums=0)
def encode(model, variables, images, tokens, lengths):
    """Return the codes of images and captions in eval mode."""
    image_code = model.apply(variables, images, method="encode_images")
    return image_code, model.apply(variables, tokens, lengths, method="encode_captions")


@partial(jax.jit, static_argnums=0)
def score(model, variables, image_code, text_code):
    return model.apply(variables, image_code, text_code, method="similarity")


@partial(jax.jit, static_argnums=0)
def train_pass(model, variables, inputs, cotangent):
    """Return similarities and collections in train mode, and the parameters' gradient.

    The gradient is that of `sum(cotangent * sims)`, so one compiled program serves any loss: its
    gradient with respect to the similarities is the cotangent. The collections hold the new running
    statistics, and the codes as intermediates.
    """

    def sims_of(params):
        return model.apply(
            {**variables, "params": params},
            *inputs,
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
        self._inputs = inputs_of(arrays)
        size = (len(self._inputs[0]), len(self._inputs[1]))
        self.sims, self.collections, _ = self._run(self._inputs, jnp.zeros(size))

    def gradients(self, loss):
        """Return the gradient of `loss(sims)` with respect to the parameters."""
        return self._run(self._inputs, jax.grad(loss)(self.sims))[2]


def encoders(arrays: Arrays) -> Errors:
    weights = arrays.under("w/")
    images, tokens, lengths = inputs_of(arrays)
    vocabulary_size, word_dim = weights["txt_enc.embed.weight"].shape
    embed_dim = weights["img_enc.fc.weight"].shape[0]
    mask = (np.arange(tokens.shape[1]) < lengths[:, None]).astype(np.float32)

    params = {"projection": linear_from_state_dict(weights, "img_enc.fc")}
    for normalise, name in ((True, "out/img_emb"), (False, "out/img_emb_nonorm")):
        regions = RegionEncoder(embed_dim, normalise).apply({"params": params}, images)
        yield "regions", difference(regions, arrays[name])

    params = words_from_state_dict(weights)
    for normalise, name in ((True, "out/cap_emb"), (False, "out/cap_emb_nonorm")):
        encoder = WordEncoder(vocabulary_size, word_dim, embed_dim, 0.0, normalise=normalise)
        words = encoder.apply({"params": params}, tokens, mask, False)
        yield "words", difference(words, arrays[name])

    # The one-directional GRU has other weights. With zero weights the reverse direction outputs
    # zeros, so the mean of both is half of the first, and the normalisation removes the half.
    single = arrays.under("uni_w/")
    params = words_from_state_dict(ChainMap(single, _zero_reverse(single)))
    encoder = WordEncoder(vocabulary_size, word_dim, embed_dim, 0.0)
    one_way = encoder.apply({"params": params}, tokens, mask, False)
    yield "words", difference(one_way, arrays["out/cap_emb_uni"])


def _zero_reverse(single: Arrays) -> dict:
    """Return zero weights for the reverse direction of the GRU."""
    return {f"{key}_reverse": np.zeros_like(single[key]) for key in single if "cap_rnn" in key}


def similarity(arrays: Arrays) -> Errors:
    weights, inputs, out = arrays.under("w/"), inputs_of(arrays), arrays.under("out/eval/")
    variables = variables_from_state_dict(weights)
    model = model_from_state_dict(weights, dropout=0.0, chunk=3)
    fresh = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    is_equal = jax.tree.map(jnp.shape, fresh) == jax.tree.map(np.shape, variables)
    yield "parameter tree", 0.0 if is_equal else np.inf

    codes = image_code, text_code = encode(model, variables, *inputs)
    ours = {
        "img_emb": image_code.regions,
        "cap_emb": text_code.words,
        "img_glo": image_code.overall,
        "cap_glo": text_code.overall,
    }
    for name, code in ours.items():
        yield "codes", difference(code, out[name])
    sims = score(model, variables, *codes)
    yield "similarities, eval", both_precisions(sims, out, "sims")
    yield "similarities, eval", difference(np.diag(sims), out["sims_individual"])
    few = len(out["sims_rect"])
    some = jax.tree.map(lambda x: x[:few], image_code)
    sims = score(model, variables, some, text_code)
    yield "similarities, eval", difference(sims, out["sims_rect"])
    yield from _training_mode(arrays)


def _training_mode(arrays: Arrays) -> Errors:
    weights, out = arrays.under("w/"), arrays.under("out/train/")
    run = TrainMode(arrays)
    codes = run.collections["intermediates"]
    yield "codes", difference(codes["encode_images"][0].overall, out["img_glo"])
    yield "codes", difference(codes["encode_captions"][0].overall, out["cap_glo"])
    yield "similarities, train", both_precisions(run.sims, out, "sims")
    for after in ("bn_after/", "bn_after_f64/"):
        theirs = variables_from_state_dict(ChainMap(out.under(after), weights))["batch_stats"]
        yield "running statistics", tree_difference(run.collections["batch_stats"], theirs)
    loss = partial(ranking.triplet_hardest, margin=MARGIN)
    error = both_precisions(loss(run.sims), out, "loss_max_violation", relative=True)
    yield "triplet loss, relative", error
    theirs = variables_from_state_dict(ChainMap(arrays.under("grad/"), weights))["params"]
    # The difference between the authors' float32 and float64 runs. A gradient that is zero by
    # construction consists of nothing else.
    noise = arrays.under("grad_noise/")
    noise = {key: np.broadcast_to(noise.get(key, 0.0), x.shape) for key, x in weights.items()}
    noise = variables_from_state_dict(noise)["params"]
    scale = largest(np.abs(x).max() for x in jax.tree.leaves(theirs))
    error = partial(_gradient_difference, scale=scale)
    errors = jax.tree.map(error, run.gradients(loss), theirs, noise)
    yield "gradients, each / its largest", largest(jax.tree.leaves(errors))


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
    beyond = max(0.0, difference(ours, theirs) - noise)
    return beyond / (most if most > noise else scale)


def gradient_error(ours, given: Mapping, weights: Mapping) -> float:
    """Return the largest difference over the largest entry, for the parameters in `given`."""
    theirs = variables_from_state_dict(ChainMap(given, weights))["params"]
    is_given = {key: np.full(x.shape, key in given) for key, x in weights.items()}
    is_given = jax.tree.leaves(variables_from_state_dict(is_given)["params"])
    leaves = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), is_given, strict=True)
    compared = [(a, b) for a, b, k in leaves if np.all(k)]
    return largest(difference(a, b) for a, b in compared) / largest(
        np.abs(b).max() for _, b in compared
    )


def evaluation(arrays: Arrays) -> Errors:
    inputs = inputs_of(arrays)
    per_image = len(inputs[1]) // len(inputs[0])
    heads, total = ("SGR", "SAF"), 0.0
    for name in heads:
        weights, out = arrays.under(f"w_{name}/"), arrays.under(f"out/{name}/")
        model = model_from_state_dict(weights, dropout=0.0, chunk=7)
        variables = variables_from_state_dict(weights)
        sims = np.asarray(score(model, variables, *encode(model, variables, *inputs)))
        yield "similarities", difference(sims, out["sims"])
        yield "recalls and ranks", recall_difference(sims, per_image, out)
        total = total + sims
    mean = total / len(heads)
    yield "recalls and ranks", recall_difference(mean, per_image, arrays.under("out/SGRAF/"))


def recall_difference(sims, per_image: int, out: Arrays, prefix: str = "") -> float:
    """Return the largest difference of R@1, R@5, R@10, median and mean rank, both ways."""
    row = recalls(sims, per_image)
    names = ("r1", "r5", "r10", "median", "mean")
    return largest(
        difference([row[f"{way}_{name}"] for name in names], out[f"{prefix}{way}"])
        for way in ("i2t", "t2i")
    )
