"""CHAN and NAAF: scores, gradients, and one step of each model."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax.devices.batch import Batch
from l2rm_jax.losses import ranking
from l2rm_jax.methods.base import Optimiser
from l2rm_jax.models import naaf
from l2rm_jax.models import naaf_threshold as threshold
from l2rm_jax.models.attention import region_word_cosines
from l2rm_jax.models.chan import CHAN, RegionAttention, word_maxima
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.naaf import NAAF
from l2rm_jax.published.conversion import linear_from_state_dict, words_from_state_dict
from tests.golden.fidelity.arrays import Arrays, difference, largest, tree_difference
from tests.golden.fidelity.heads import vectors_of
from tests.golden.fidelity.losses import value_and_gradient
from tests.golden.fidelity.models import batch_of, model_of

CHAN_MARGIN, NAAF_MARGIN = 0.05, 0.2
LEARNING_RATE, GRAD_CLIP = 5e-4, 2.0
MODEL_GRADIENTS = "gradients of a model / largest"


def chan(arrays: Arrays) -> None:
    images, texts, masks = vectors_of(arrays)
    for pooling, name in (("mean", "MeanPooling"), ("lse", "LSEPooling")):
        stored = arrays.under(f"VHACoding/{name}/")
        head = CHAN(pooling, chunk=3)
        _check_sims_and_gradients(arrays, head, {}, images, texts, masks, stored)
    arrays.check("word maxima", _masked_maxima(images, texts, masks), "VHACoding/fragment_sims")
    stored = arrays.under("selfattention/")
    whole = np.ones(stored["x"].shape[:2], np.float32)
    params = {"params": _attention(stored.under("w/"), "")}
    stored.check("region attention", RegionAttention().apply(params, stored["x"], whole), "out")
    stored = arrays.under("loss/")
    values = {
        f"contrastive_max{n}_margin0.05": value_and_gradient(loss, stored["sims"])
        for n, loss in enumerate(_chan_losses(len(stored["sims"])))
    }
    stored.check_losses(values, "grad")
    _check_chan_model(arrays.under("model/"))


def _chan_losses(size: int) -> tuple[Callable, Callable]:
    """Return their losses: with all negatives, summed where ours is a mean; with the hardest."""
    return (
        lambda sims: size * ranking.triplet_mean(sims, margin=CHAN_MARGIN),
        partial(ranking.triplet_hardest, margin=CHAN_MARGIN),
    )


def _check_chan_model(stored: Arrays) -> None:
    weights, out = stored.under("w/"), stored.under("out/")
    images, tokens, counts, lengths = (
        stored[f"in/{name}"] for name in ("images", "captions", "img_lens", "cap_lens")
    )
    model = model_of("chan", weights, **{"model.pooling": "lse", "model.chunk": 3})
    params = _chan_params(weights)
    # Their regions attend to the padding: here all rows are regions until the score.
    rows = np.full(len(images), images.shape[1])

    def sims_of(params, images):
        variables, batch = {"params": params}, Batch(images, rows, tokens, lengths)
        codes, texts = model.apply(variables, batch, method="encode")
        mask = (np.arange(images.shape[1]) < counts[:, None]).astype(np.float32)
        sims = model.apply(variables, codes.replace(mask=mask), texts, True, method="similarity")
        return sims, (codes.regions, texts.words, mask, texts.mask)

    sims, (regions, words, *masks) = jax.jit(sims_of)(params, images)
    out.check("codes", regions, "img_emb")
    out.check("codes", words, "cap_emb")
    out.check("similarities / largest", sims, "sims")
    out.check("word maxima", _masked_maxima(regions, words, masks), "word_max")
    first = images[:1, : int(counts[0])]
    first = Batch(first, np.full(1, first.shape[1]))
    alone = model.apply({"params": params}, first, method="encode_images")
    out.check("codes", alone.regions, "img_emb_of_image0_alone")

    @partial(jax.jit, static_argnums=2)
    def gradients(params, images, loss):
        return jax.grad(lambda p, x: loss(sims_of(p, x)[0]), (0, 1))(params, images)

    for name, loss in zip(("all", "hard"), _chan_losses(len(sims)), strict=True):
        out.check("losses, relative", loss(sims), f"loss_{name}")
        of_params, of_images = gradients(params, images, loss)
        stored.check(MODEL_GRADIENTS, of_images, f"grad_{name}_images")
    for name in ("weight", "bias"):  # a layer that is never used
        name = f"txt_enc.fc.{name}"
        stored.check("weights after, beyond noise", weights[name], f"w_after/{name}")
    expected = _chan_params(stored.under("grad_hard/"))
    stored.add(MODEL_GRADIENTS, tree_difference(of_params, expected, relative=True))
    optimiser = Optimiser(LEARNING_RATE, 10, grad_clip=GRAD_CLIP, weight_decay=0.01)
    names = [name for name in weights if not name.startswith("txt_enc.fc")]
    _check_update(stored, optimiser, params, of_params, _chan_params, names)


def _chan_params(weights: Arrays) -> dict:
    return {
        "image_encoder": {
            "regions": {"projection": linear_from_state_dict(weights, "img_enc.fc")},
            "region_attention": _attention(weights, "img_enc.feedforward."),
        },
        "text_encoder": {"words": words_from_state_dict(weights, "txt_enc.rnn")},
    }


def _attention(weights: Arrays, prefix: str) -> dict:
    return {
        "norm": {"scale": weights[f"{prefix}ln.weight"], "bias": weights[f"{prefix}ln.bias"]},
        "input_kernel": weights[f"{prefix}attn.in_proj_weight"].T,
        "input_bias": weights[f"{prefix}attn.in_proj_bias"],
        "output": linear_from_state_dict(weights, f"{prefix}attn.out_proj"),
    }


def naaf_head(arrays: Arrays) -> None:
    images, texts, masks = vectors_of(arrays)
    head = NAAF("code", chunk=3)
    for case in ("train0", "train1"):
        stored = arrays.under(f"{case}/")
        start = {"batch_stats": _thresholds(stored.under("before/"))}
        _check_sims_and_gradients(arrays, head, start, images, texts, masks, stored)
        _check_thresholds(stored, images, texts, masks)
        loss = partial(ranking.triplet_hardest, margin=NAAF_MARGIN)
        value, gradient = value_and_gradient(loss, stored["sims"])
        stored.check("losses, relative", value, "loss_max_margin0.2")
        stored.check("gradients / largest", gradient, "loss_grad_sims")
    wide = arrays.under("wide/")
    stored_before = {"batch_stats": {"threshold": jnp.zeros(()), "safe_threshold": jnp.zeros(())}}
    sims, _ = _train_sims(head, stored_before, images, wide["in/caps"], masks)
    wide.check("similarities", sims, "sims")
    _check_thresholds(wide, images, wide["in/caps"], masks)
    _check_parts(arrays, images, texts, masks)
    evaluate = jax.jit(lambda both, codes: head.apply({"batch_stats": both}, *codes, False))
    for value in ("0.0", "0.15", "0.4"):
        stored = arrays.under(f"test_thres{value}/")
        both = {"threshold": jnp.float32(0.9), "safe_threshold": jnp.float32(value)}
        sims = evaluate(both, _codes(images, texts, masks))
        stored.check("similarities of evaluation", sims, "sims")
        if "sims_float32_inputs" in stored:
            stored.check("similarities of evaluation", sims, "sims_float32_inputs")
    _check_naaf_model(arrays.under("model/"))


def _thresholds(stored: Arrays) -> dict:
    return {
        "threshold": jnp.asarray(stored["thres"]),
        "safe_threshold": jnp.asarray(stored["thres_safe"]),
    }


def _check_thresholds(stored: Arrays, images, texts, masks) -> None:
    """Compare the thresholds after each caption of a batch, and the statistics behind them."""
    codes = _codes(images, texts, masks)
    start = threshold.Thresholds(jnp.zeros(()), jnp.zeros(()))
    if "before/thres" in stored:
        start = threshold.Thresholds(stored["before/thres"], stored["before/thres_safe"])
    score = partial(naaf._score_caption, codes[0])
    used, after = jax.jit(lambda start: threshold.by_caption(score, *codes, start, None))(start)
    stored.check("thresholds", used[1:], stored["thres_after_caption"][:-1])
    stored.check("thresholds", used[0], start.threshold)
    stored.check("thresholds", after.threshold, stored["thres_after_caption"][-1])
    stored.check("thresholds", after.safe, stored["thres_safe_after_caption"][-1])
    stored.check("thresholds", after, [stored["thres"], stored["thres_safe"]])
    # The last statistics of the batch, from the scores that the authors' code has stored.
    sims = stored["sims"]
    is_first = np.argmax(sims, axis=0) == np.arange(len(sims))
    if "own_image_first" in stored:
        theirs = stored["own_image_first"] == 1
        stored.add("captions drawn otherwise", np.sum(is_first != theirs))
    cosines = region_word_cosines(*codes)
    maxima = np.asarray(threshold.largest_cosines(cosines, masks[0]))
    captions, words = np.arange(len(sims)), masks[1] > 0
    for rows, kind in ((captions, "pos"), (np.argmin(sims, axis=0), "neg")):
        drawn = maxima[rows, captions][words & is_first[:, None]]
        stored.check("statistics of the draws", drawn.mean(), f"mean_{kind}")
        stored.check("statistics of the draws", drawn.std(ddof=1), f"stnd_{kind}")


def _check_parts(arrays: Arrays, images, texts, masks) -> None:
    parts = arrays.under("parts_thres0.2/")
    for case in parts.cases("negative"):
        stored = parts.under(f"{case}/")
        j = int(case.removeprefix("caption"))
        length = int(arrays["in/cap_lens"][j])
        codes = _codes(images, texts[j : j + 1, :length], (masks[0], masks[1][j : j + 1, :length]))
        cosines, at = region_word_cosines(*codes), jnp.full((1, 1), 0.2)
        products, mask, word_mask = codes[0].products, masks[0], codes[1].mask
        above, features, relevance = naaf.word_parts(cosines, products, mask, word_mask, at)
        ours = {
            "negative": jnp.minimum(above, 0)[:, 0],
            "positive_features": features[:, 0],
            "positive_relevance": relevance[:, 0],
            "weights_features_image0": naaf.feature_weights(cosines, mask, at)[0, :, 0].T,
            "weights_relevance_image0": naaf._relevance_weights(cosines, mask, word_mask)[
                0, :, 0
            ].T,
            "word_to_word": naaf.similar_words(codes[1].words, word_mask)[0],
        }
        for name, values in ours.items():
            stored.check("parts of words", values, name)


def _check_naaf_model(stored: Arrays) -> None:
    weights, out = stored.under("w/"), stored.under("out/")
    batch = batch_of(stored, "cap_lens")
    model = model_of("naaf", weights, **{"naaf.threshold": "code", "model.chunk": 3})
    params = _naaf_params(weights)
    before = {"threshold": jnp.float32(0.3), "safe_threshold": jnp.zeros(())}
    statistics = {"batch_stats": {"similarity_head": before}}

    def loss_of(params, images):
        settings = {"train": True, "method": "global_similarity", "mutable": ["batch_stats"]}
        inputs = batch._replace(images=images)
        sims, after = model.apply({"params": params, **statistics}, inputs, **settings)
        loss = ranking.triplet_hardest(sims, margin=NAAF_MARGIN)
        return loss, (sims, after["batch_stats"]["similarity_head"]["threshold"])

    grad = jax.jit(jax.value_and_grad(loss_of, (0, 1), has_aux=True))
    (loss, (sims, after)), (of_params, of_images) = grad(params, batch.images)
    image_code, text_code = model.apply({"params": params, **statistics}, batch, method="encode")
    out.check("codes", image_code.regions, "img_emb")
    out.check("codes", text_code.words, "cap_emb")
    out.check("similarities", sims, "sims_thres_before_0.3")
    out.check("losses, relative", loss, "loss")
    out.check("thresholds", after, "thres_after")
    stored.check(MODEL_GRADIENTS, of_images, "grad_images")
    expected = _naaf_params(stored.under("grad/"))
    stored.add(MODEL_GRADIENTS, tree_difference(of_params, expected, relative=True))
    optimiser = Optimiser(LEARNING_RATE, 10, grad_clip=GRAD_CLIP)
    _check_update(stored, optimiser, params, of_params, _naaf_params, list(weights))


def _naaf_params(weights: Arrays) -> dict:
    return {
        "image_encoder": {"regions": {"projection": linear_from_state_dict(weights, "img_enc.fc")}},
        "text_encoder": {"words": words_from_state_dict(weights, "txt_enc.rnn")},
    }


def _codes(images, texts, masks) -> tuple[ImageCode, TextCode]:
    images, texts = (
        x * jnp.asarray(mask)[..., None] for x, mask in zip((images, texts), masks, strict=True)
    )
    code = ImageCode(images, jnp.asarray(masks[0]), products=region_products(images))
    return code, TextCode(texts, jnp.asarray(masks[1]))


def _train_sims(head, variables: dict, images, texts, masks):
    """Return training scores, and the function that pulls their gradient back to the inputs."""

    @jax.jit
    def run(images, texts):
        codes = _codes(images, texts, masks)
        return head.apply(variables, *codes, True, mutable=["batch_stats"])[0]

    return jax.vjp(run, images, texts)


def _check_sims_and_gradients(
    arrays: Arrays, head, variables: dict, images, texts, masks, stored: Arrays
) -> None:
    sims, pull_back = _train_sims(head, variables, images, texts, masks)
    # Scores by the logarithm of a sum are ten times as large.
    scale = max(1.0, float(np.abs(stored["sims"]).max()))
    stored.add("similarities", difference(sims, stored["sims"]) / scale)
    for ours, name in zip(pull_back(arrays["in/grad_weights"]), ("imgs", "caps"), strict=True):
        stored.check("gradients / largest", ours, f"grad_{name}")


def _masked_maxima(images, texts, masks) -> np.ndarray:
    """Return the largest cosine of each word, and -1 for padding, as their code has it."""
    maxima = word_maxima(region_word_cosines(*_codes(images, texts, masks)), masks[0])
    return np.where(masks[1] > 0, maxima, -1.0)


def _check_update(
    stored: Arrays, optimiser: Optimiser, params: dict, gradients: dict, convert, names: list[str]
) -> None:
    """Compare one update: the norm of the gradient before clipping, the parameters after it."""
    norm, after = one_update(optimiser, params, gradients)
    stored.check("gradient norm, relative", norm, "grad_norm_before_clip")
    theirs = stored.under("w_after/")
    noise = {name: np.zeros(theirs[name].shape) for name in names}
    for name, allowed in noise.items():
        if name.endswith("in_proj_bias"):
            third = len(allowed) // 3  # has no gradient: the softmax sees no shift
            allowed[third : 2 * third] = 2 * optimiser.learning_rate
    beyond = jax.tree.map(
        lambda x, y, n: np.maximum(np.abs(x - y) - n, 0).max(),
        after,
        convert(theirs),
        convert(noise),
    )
    stored.add("weights after, beyond noise", largest(jax.tree.leaves(beyond)))


def one_update(optimiser: Optimiser, params: dict, gradients: dict) -> tuple:
    """Return the norm of the gradients before clipping, and the parameters after one update."""
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(gradients)))
    epoch = jnp.zeros((), jnp.int32)
    return norm, optimiser.update(gradients, optimiser.init(params), params, epoch)[0]
