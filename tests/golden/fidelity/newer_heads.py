"""CHAN and NAAF: scores, gradients, and one step of each model."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax import config as defaults
from l2rm_jax.losses import ranking
from l2rm_jax.methods.base import Optimiser
from l2rm_jax.models import make_model, naaf
from l2rm_jax.models import naaf_threshold as threshold
from l2rm_jax.models.attention import region_word_cosines
from l2rm_jax.models.chan import CHAN, RegionAttention, word_maxima
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.naaf import NAAF
from l2rm_jax.published.conversion import linear_from_state_dict, words_from_state_dict
from tests.golden.fidelity.arrays import Arrays, Errors, both_precisions, difference, largest

CHAN_MARGIN, NAAF_MARGIN = 0.05, 0.2
LEARNING_RATE, GRAD_CLIP = 5e-4, 2.0
STATISTICS = ("stnd_pos", "stnd_neg", "mean_pos", "mean_neg")


def chan(arrays: Arrays) -> Errors:
    images, texts, masks = _vectors(arrays)
    for pooling, name in (("mean", "MeanPooling"), ("lse", "LSEPooling")):
        stored = arrays.under(f"VHACoding/{name}/")
        head = CHAN(pooling, chunk=3)
        yield from _sims_and_gradients(arrays, head, {}, images, texts, masks, stored)
    codes = _codes(images, texts, masks)
    yield (
        "word maxima",
        difference(
            _masked(word_maxima(region_word_cosines(*codes), masks[0]), masks[1]),
            arrays["VHACoding/fragment_sims"],
        ),
    )
    stored = arrays.under("selfattention/")
    whole = np.ones(stored["x"].shape[:2], np.float32)
    params = {"params": _attention(stored.under("w/"), "")}
    out = RegionAttention().apply(params, stored["x"], whole)
    yield "region attention", difference(out, stored["out"])
    yield from _chan_losses(arrays.under("loss/"))
    yield from _chan_model(arrays.under("model/"))


def _chan_losses(stored: Arrays) -> Errors:
    sims = stored["sims"]
    for name, loss in _chan_loss_functions(len(sims)).items():
        key = f"contrastive_max{name}_margin0.05"
        value, gradient = jax.value_and_grad(loss)(sims)
        yield "losses, relative", both_precisions(value, stored, key, relative=True)
        yield "gradients / largest", difference(gradient, stored[f"{key}_grad"], relative=True)


def _chan_loss_functions(size: int) -> dict:
    """Their losses: with all negatives, summed where ours is a mean, and with the hardest."""
    return {
        0: lambda sims: size * ranking.triplet_mean(sims, margin=CHAN_MARGIN),
        1: partial(ranking.triplet_hardest, margin=CHAN_MARGIN),
    }


def _chan_model(stored: Arrays) -> Errors:
    weights, out = stored.under("w/"), stored.under("out/")
    images, tokens, counts, lengths = (
        stored[f"in/{name}"] for name in ("images", "captions", "img_lens", "cap_lens")
    )
    model = _model("chan", weights, **{"model.pooling": "lse"})
    params = _chan_params(weights)
    # Their regions attend to the padding: here all rows are regions until the score.
    rows = np.full(len(images), images.shape[1])

    def sims_of(params, images):
        variables = {"params": params}
        codes = model.apply(variables, images, rows, method="encode_images")
        mask = (np.arange(images.shape[1]) < counts[:, None]).astype(np.float32)
        texts = model.apply(variables, tokens, lengths, method="encode_captions")
        sims = model.apply(variables, codes.replace(mask=mask), texts, True, method="similarity")
        return sims, (codes.regions, texts.words, mask, texts.mask)

    sims, (regions, words, *masks) = jax.jit(sims_of)(params, images)
    yield "codes", difference(regions, out["img_emb"])
    yield "codes", difference(words, out["cap_emb"])
    yield "similarities / largest", difference(sims, out["sims"], relative=True)
    maxima = word_maxima(region_word_cosines(*_codes(regions, words, masks)), masks[0])
    yield "word maxima", difference(_masked(maxima, masks[1]), out["word_max"])
    few = int(counts[0])
    alone = model.apply({"params": params}, images[:1, :few], method="encode_images")
    yield "codes", difference(alone.regions, out["img_emb_of_image0_alone"])

    losses = _chan_loss_functions(len(sims))
    for name, loss in ((0, "all"), (1, "hard")):
        value = losses[name](sims)
        yield "losses, relative", both_precisions(value, out, f"loss_{loss}", relative=True)

    @partial(jax.jit, static_argnums=2)
    def gradients(params, images, loss):
        return jax.grad(lambda p, x: losses[loss](sims_of(p, x)[0]), (0, 1))(params, images)

    _, of_images = gradients(params, images, 0)
    error = difference(of_images, stored["grad_all_images"], relative=True)
    yield "gradients of a model / largest", error
    of_params, of_images = gradients(params, images, 1)
    error = difference(of_images, stored["grad_hard_images"], relative=True)
    yield "gradients of a model / largest", error
    names = [name for name in weights if not name.startswith("txt_enc.fc")]
    for name in ("weight", "bias"):  # a layer that is never used
        same = stored[f"w_after/txt_enc.fc.{name}"]
        yield "weights after, beyond noise", difference(weights[f"txt_enc.fc.{name}"], same)
    expected = _chan_params(stored.under("grad_hard/"))
    yield "gradients of a model / largest", _tree_error(of_params, expected)
    optimiser = Optimiser(LEARNING_RATE, 10, grad_clip=GRAD_CLIP, weight_decay=0.01)
    yield from _after(stored, optimiser, params, of_params, _chan_params, names)


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


def naaf_head(arrays: Arrays) -> Errors:
    images, texts, masks = _vectors(arrays)
    head = NAAF("code", chunk=3)
    for case in ("train0", "train1"):
        stored = arrays.under(f"{case}/")
        start = {"batch_stats": _thresholds(stored.under("before/"))}
        yield from _sims_and_gradients(arrays, head, start, images, texts, masks, stored)
        yield from _path(stored, images, texts, masks)
        sims = stored["sims"]
        loss = partial(ranking.triplet_hardest, margin=NAAF_MARGIN)
        value, gradient = jax.value_and_grad(loss)(sims)
        key = "loss_max_margin0.2"
        yield "losses, relative", both_precisions(value, stored, key, relative=True)
        yield "gradients / largest", difference(gradient, stored["loss_grad_sims"], relative=True)
    wide = arrays.under("wide/")
    stored_before = {"batch_stats": {"threshold": jnp.zeros(()), "safe_threshold": jnp.zeros(())}}
    sims, _ = _train_sims(head, stored_before, images, wide["in/caps"], masks)
    yield "similarities", difference(sims, wide["sims"])
    yield from _path(wide, images, wide["in/caps"], masks)
    yield from _parts(arrays, images, texts, masks)
    for value in ("0.0", "0.15", "0.4"):
        stored = arrays.under(f"test_thres{value}/")
        both = {"threshold": jnp.float32(0.9), "safe_threshold": jnp.float32(value)}
        codes = _codes(images, texts, masks)
        sims = jax.jit(lambda both, codes: head.apply({"batch_stats": both}, *codes, False))(
            both, codes
        )
        yield "similarities of evaluation", difference(sims, stored["sims"])
        if "sims_float32_inputs" in stored:
            yield "similarities of evaluation", difference(sims, stored["sims_float32_inputs"])
    yield from _naaf_model(arrays.under("model/"))


def _thresholds(stored: Arrays) -> dict:
    return {
        "threshold": jnp.asarray(stored["thres"]),
        "safe_threshold": jnp.asarray(stored["thres_safe"]),
    }


def _path(stored: Arrays, images, texts, masks) -> Errors:
    """The thresholds after each caption of a batch, and what decides them."""
    codes = _codes(images, texts, masks)
    start = threshold.Thresholds(jnp.zeros(()), jnp.zeros(()))
    if "before/thres" in stored:
        start = threshold.Thresholds(stored["before/thres"], stored["before/thres_safe"])
    score = partial(naaf._score_caption, codes[0])
    used, after = jax.jit(lambda start: threshold.by_caption(score, *codes, start, None))(start)
    yield "thresholds", difference(used[1:], stored["thres_after_caption"][:-1])
    yield "thresholds", difference(used[0], start.threshold)
    yield "thresholds", difference(after.threshold, stored["thres_after_caption"][-1])
    yield "thresholds", difference(after.safe, stored["thres_safe_after_caption"][-1])
    yield "thresholds", difference(after, [stored["thres"], stored["thres_safe"]])
    if "own_image_first" in stored:
        ours = np.argmax(stored["sims"], axis=0) == np.arange(stored["sims"].shape[1])
        yield "captions drawn otherwise", np.sum(ours != (stored["own_image_first"] == 1))
    # The last statistics of the batch, from the scores that the authors' code has stored.
    sims = stored["sims"]
    is_first = np.argmax(sims, axis=0) == np.arange(len(sims))
    cosines = region_word_cosines(*codes)
    maxima = np.asarray(threshold.largest_cosines(cosines, masks[0]))
    captions, words = np.arange(len(sims)), masks[1] > 0
    for rows, kind in ((captions, "pos"), (np.argmin(sims, axis=0), "neg")):
        drawn = maxima[rows, captions][words & is_first[:, None]]
        yield "statistics of the draws", difference(drawn.mean(), stored[f"mean_{kind}"])
        yield "statistics of the draws", difference(drawn.std(ddof=1), stored[f"stnd_{kind}"])


def _parts(arrays: Arrays, images, texts, masks) -> Errors:
    parts = arrays.under("parts_thres0.2/")
    for case in parts.cases("negative"):
        stored = parts.under(f"{case}/")
        j = int(case.removeprefix("caption"))
        length = int(arrays["in/cap_lens"][j])
        codes = _codes(images, texts[j : j + 1, :length], (masks[0], masks[1][j : j + 1, :length]))
        cosines, at = region_word_cosines(*codes), jnp.full((1, 1), 0.2)
        products, mask, word_mask = codes[0].products, masks[0], codes[1].mask
        above, features, relevance = naaf.word_parts(cosines, products, mask, word_mask, at)
        yield "parts of words", difference(jnp.minimum(above, 0)[:, 0], stored["negative"])
        yield "parts of words", difference(features[:, 0], stored["positive_features"])
        yield "parts of words", difference(relevance[:, 0], stored["positive_relevance"])
        weights = naaf.feature_weights(cosines, mask, at)[0, :, 0].T
        yield "parts of words", difference(weights, stored["weights_features_image0"])
        weights = naaf._relevance_weights(cosines, mask, word_mask)[0, :, 0].T
        yield "parts of words", difference(weights, stored["weights_relevance_image0"])
        weights = naaf.similar_words(codes[1].words, word_mask)[0]
        yield "parts of words", difference(weights, stored["word_to_word"])


def _naaf_model(stored: Arrays) -> Errors:
    weights, out = stored.under("w/"), stored.under("out/")
    images, tokens, lengths = (stored[f"in/{name}"] for name in ("images", "captions", "cap_lens"))
    model = _model("naaf", weights, **{"naaf.threshold": "code"})
    params = _naaf_params(weights)
    before = {"threshold": jnp.float32(0.3), "safe_threshold": jnp.zeros(())}
    statistics = {"batch_stats": {"similarity_head": before}}

    def loss_of(params, images):
        inputs = (images, tokens, lengths)
        settings = {"train": True, "method": "global_similarity", "mutable": ["batch_stats"]}
        sims, after = model.apply({"params": params, **statistics}, *inputs, **settings)
        loss = ranking.triplet_hardest(sims, margin=NAAF_MARGIN)
        return loss, (sims, after["batch_stats"]["similarity_head"]["threshold"])

    grad = jax.jit(jax.value_and_grad(loss_of, (0, 1), has_aux=True))
    (loss, (sims, after)), (of_params, of_images) = grad(params, images)
    variables = {"params": params, **statistics}
    code = model.apply(variables, images, method="encode_images")
    yield "codes", difference(code.regions, out["img_emb"])
    words = model.apply(variables, tokens, lengths, method="encode_captions").words
    yield "codes", difference(words, out["cap_emb"])
    yield "similarities", difference(sims, out["sims_thres_before_0.3"])
    yield "losses, relative", both_precisions(loss, out, "loss", relative=True)
    yield "thresholds", difference(after, out["thres_after"])
    error = difference(of_images, stored["grad_images"], relative=True)
    yield "gradients of a model / largest", error
    error = _tree_error(of_params, _naaf_params(stored.under("grad/")))
    yield "gradients of a model / largest", error
    optimiser = Optimiser(LEARNING_RATE, 10, grad_clip=GRAD_CLIP)
    yield from _after(stored, optimiser, params, of_params, _naaf_params, list(weights))


def _naaf_params(weights: Arrays) -> dict:
    return {
        "image_encoder": {"regions": {"projection": linear_from_state_dict(weights, "img_enc.fc")}},
        "text_encoder": {"words": words_from_state_dict(weights, "txt_enc.rnn")},
    }


def _vectors(arrays: Arrays) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Unit regions and words of the file, zero in the padding, and their masks."""
    images, texts = arrays["in/imgs"], arrays["in/caps"]
    counts = np.full(len(images), images.shape[1])
    if "in/img_lens" in arrays:
        counts = arrays["in/img_lens"]
    masks = [
        (np.arange(x.shape[1]) < n[:, None]).astype(np.float32)
        for x, n in ((images, counts), (texts, arrays["in/cap_lens"]))
    ]
    return images, texts, masks


def _codes(images, texts, masks) -> tuple[ImageCode, TextCode]:
    images, texts = (
        x * jnp.asarray(mask)[..., None] for x, mask in zip((images, texts), masks, strict=True)
    )
    code = ImageCode(images, jnp.asarray(masks[0]), products=region_products(images))
    return code, TextCode(texts, jnp.asarray(masks[1]))


def _train_sims(head, variables: dict, images, texts, masks):
    """Training scores, and the function that pulls their gradient back to images and texts."""

    @jax.jit
    def run(images, texts):
        codes = _codes(images, texts, masks)
        return head.apply(variables, *codes, True, mutable=["batch_stats"])[0]

    return jax.vjp(run, images, texts)


def _sims_and_gradients(
    arrays: Arrays, head, variables: dict, images, texts, masks, stored: Arrays
) -> Errors:
    sims, pull_back = _train_sims(head, variables, images, texts, masks)
    # Scores by the logarithm of a sum are ten times as large.
    scale = max(1.0, float(np.abs(stored["sims"]).max()))
    yield "similarities", difference(sims, stored["sims"]) / scale
    for ours, name in zip(pull_back(arrays["in/grad_weights"]), ("imgs", "caps"), strict=True):
        yield "gradients / largest", difference(ours, stored[f"grad_{name}"], relative=True)


def _masked(maxima, word_mask) -> np.ndarray:
    """Their code marks padding by -1."""
    return np.where(word_mask > 0, maxima, -1.0)


def _model(head: str, weights: Arrays, **fields):
    config = defaults.default()
    sizes = {
        "model.head": head,
        "model.embed_dim": len(weights["img_enc.fc.weight"]),
        "model.word_dim": weights["txt_enc.embed.weight"].shape[1],
        "model.dropout": 0.0,
        "model.chunk": 3,
    }
    config.update_from_flattened_dict({**sizes, **fields})
    return make_model(config, vocabulary_size=len(weights["txt_enc.embed.weight"]))


def _tree_error(ours: dict, theirs: dict) -> float:
    """Largest difference over the largest entry of all."""
    scale = largest(np.abs(x).max() for x in jax.tree.leaves(theirs))
    return largest(jax.tree.leaves(jax.tree.map(difference, ours, theirs))) / scale


def _after(
    stored: Arrays, optimiser: Optimiser, params: dict, gradients: dict, convert, names: list[str]
) -> Errors:
    """One update: the norm of the gradient before clipping, and the parameters after it."""
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(gradients)))
    yield (
        "gradient norm, relative",
        difference(norm, stored["grad_norm_before_clip"], relative=True),
    )
    epoch = jnp.zeros((), jnp.int32)
    after, _ = optimiser.update(gradients, optimiser.init(params), params, epoch)
    theirs = stored.under("w_after/")
    noise = {name: np.zeros(theirs[name].shape) for name in names}
    for name in names:
        if name.endswith(
            "in_proj_bias"
        ):  # a third of it has no gradient: the softmax sees no shift
            third = len(noise[name]) // 3
            noise[name][third : 2 * third] = 2 * optimiser.learning_rate
    beyond = jax.tree.map(
        lambda x, y, n: np.maximum(np.abs(x - y) - n, 0).max(),
        after,
        convert(theirs),
        convert(noise),
    )
    yield "weights after, beyond noise", largest(jax.tree.leaves(beyond))
