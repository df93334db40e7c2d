"""OMIT and its rivals: similarities, plans and gradients from the codes of images and captions.

The authors' code adds 1e-6 to every sum of the iterations. At lambda 0.05 this floor changes the
similarities of these inputs by up to 0.05 (0.3 after one iteration). So there are two comparisons:
our iterations with that floor, and our head, which has no floor, at lambda 0.5, where the floor
does not matter.
"""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax.losses import contrastive, ranking
from l2rm_jax.models.attention import region_word_cosines
from l2rm_jax.models.cam import CAM, word_similarities
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.layers import masked_mean
from l2rm_jax.models.omit import OMIT
from l2rm_jax.models.vse import VSE
from l2rm_jax.ot.matching import project
from tests.golden.fidelity.arrays import Arrays

FLOOR = 1e-6
UNNORMALISED = 0.3  # times in/img_scale and in/cap_scale: the norms of the unnormalised case
DUSTBIN_LAMBDA = 0.05


def heads(arrays: Arrays) -> None:
    images, texts, masks = vectors_of(arrays)
    _check_full_matching(arrays, images, texts, *masks)
    _check_dustbins(arrays.under("derived/"), images, texts, *masks)
    norms = [np.linalg.norm(x, axis=-1) for x in (images, texts)]
    codes = [
        kind(x * mask[..., None], mask, None, norm * mask)
        for kind, x, mask, norm in zip(
            (ImageCode, TextCode), (images, texts), masks, norms, strict=True
        )
    ]
    for initial, margins in ((0, "uniform"), (1, "norm")):
        sims = OMIT("naive", margins, 0.5, chunk=4).apply({}, *codes, False)
        arrays.check("OMIT's head, lambda 0.5", sims, f"ot/yokoi{initial}_it3_lamb0.5/sims")
    arrays.check("VSE, mean", VSE("mean").apply({}, *codes, False), "coding/aveEncoders")
    # SCAN's code treats an image's padding as regions.
    products = region_products(images)
    whole = ImageCode(images, np.ones_like(masks[0]), products=products)
    sims = CAM("naive", chunk=4).apply({}, whole, codes[1], False)
    for theirs in ("coding/T2ICrossAttention", "cam/SCAN"):
        arrays.check("CAM", sims, f"{theirs}/MeanPooling")
    cosines = region_word_cosines(whole, codes[1])
    alike = word_similarities(cosines, products, whole.mask, masks[1], dustbin=False)
    words = np.where(masks[1] > 0, alike, -1.0)  # their code sets padding to -1
    arrays.check("CAM", words, "cam/SCAN/word_sims")

    stored = arrays.under("loss/")
    sims = stored["sims"]
    losses = {
        "contrastive_max1_margin0.05": ranking.triplet_hardest(sims, margin=0.05),
        # Theirs is not divided by the batch.
        "contrastive_max0_margin0.05": len(sims) * ranking.triplet_mean(sims, margin=0.05),
        "infonce_t0.01": contrastive.info_nce(sims, tau=0.01),
    }
    for name, value in losses.items():
        stored.check("losses, relative", value, name)


def vectors_of(arrays: Arrays) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return unit regions and words of the file, zero in the padding, and their masks."""
    images, texts = arrays["in/imgs"], arrays["in/caps"]
    counts = arrays.get("in/img_lens", np.full(len(images), images.shape[1]))
    masks = [
        (np.arange(x.shape[1]) < n[:, None]).astype(np.float32)
        for x, n in ((images, counts), (texts, arrays["in/cap_lens"]))
    ]
    return images, texts, masks


@partial(jax.jit, static_argnames=("epsilon", "iterations"))
def _as_authors(images, texts, a, b, *, epsilon, iterations):
    """Return the authors' plan and the products of regions and words, both [I, J, K, L].

    `a` [I, K] are the weights of regions, `b` [J, L] those of words.
    """
    sims = jnp.einsum("ikd,jld->ijkl", images, texts)
    shape = sims.shape[:2]
    a = jnp.broadcast_to(a[:, None], (*shape, a.shape[1]))
    b = jnp.broadcast_to(b[None], (*shape, b.shape[1]))
    has_weight = (a > 0)[..., :, None] & (b > 0)[..., None, :]
    kernel = jnp.where(has_weight, jnp.exp(-(1 - sims) / epsilon), 0.0)
    start = kernel / (kernel.sum((-2, -1), keepdims=True) + FLOOR)
    return project(start, a, b, iterations=iterations, floor=FLOOR), sims


def _check_full_matching(arrays: Arrays, images, texts, image_mask, text_mask) -> None:
    for case in arrays.under("ot/").cases("sims"):
        stored = arrays.under(f"ot/{case}/")
        initial, iterations, epsilon = map(float, re.findall(r"[0-9.]+", case))
        v, t = images, texts
        if case.endswith("_unnormalised"):
            v = v * (UNNORMALISED * arrays["in/img_scale"][..., None])
            t = t * (UNNORMALISED * arrays["in/cap_scale"][..., None])
        settings = {"epsilon": epsilon, "iterations": int(iterations)}

        def match(v, t, by_norm=bool(initial), settings=settings):
            a, b = _weights(v, image_mask, by_norm), _weights(t, text_mask, by_norm)
            plan, sims = _as_authors(v, t, a, b, **settings)
            return jnp.sum(plan * sims, (-2, -1)), plan

        sims, plan = match(v, t)
        stored.check("full matching, their floor", sims, "sims")
        if "plan" not in stored:
            continue
        stored.check("full matching, their floor", plan, "plan")
        stored.check("full matching, their floor", sims, "sims_split3")
        _, pull_back = jax.vjp(lambda v, t: match(v, t)[0], v, t)
        for ours, name in zip(pull_back(stored["grad_weights"]), ("imgs", "caps"), strict=True):
            stored.check("gradients / largest", ours, f"grad_{name}")


def _weights(vectors, mask, by_norm: bool):
    weights = jnp.linalg.norm(vectors, axis=-1) * mask if by_norm else mask
    return weights / weights.sum(1, keepdims=True)


def _check_dustbins(arrays: Arrays, images, texts, image_mask, text_mask) -> None:
    """Compare dustbins that are mean vectors, raw (norm0) or of unit length (norm1)."""
    for name, unit in (("dustbin_mean_norm0", False), ("dustbin_mean_norm1", True)):
        extended = []
        for x, mask in ((images, image_mask), (texts, text_mask)):
            mean = np.asarray(masked_mean(x, mask))
            if unit:
                mean = mean / np.linalg.norm(mean, axis=1, keepdims=True)
            vectors = np.concatenate([mean[:, None], x], axis=1)
            mask = np.pad(mask, ((0, 0), (1, 0)), constant_values=1.0)
            extended.append((vectors, _weights(vectors, mask, by_norm=False)))
        (v, a), (t, b) = extended
        plan, sims = _as_authors(v, t, a, b, epsilon=DUSTBIN_LAMBDA, iterations=3)
        arrays.check("dustbins, derived", plan, f"{name}/plan")
        local = jnp.sum((plan * sims)[..., 1:, 1:], (-2, -1))
        arrays.check("dustbins, derived", local, f"{name}/sims")
