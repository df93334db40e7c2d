"""IN2R: its losses, centring, and its queue of clean pairs with the means of the nearest."""

from functools import partial

import jax
import jax.numpy as jnp

from l2rm_jax.losses import contrastive, ranking
from l2rm_jax.losses.rectification import append, nearest_mean
from l2rm_jax.models.centred import Centring
from tests.golden.fidelity.arrays import Arrays
from tests.golden.fidelity.losses import value_and_gradient


def in2r(arrays: Arrays) -> None:
    names = ("tau", "margin", "margin_intra")
    tau, margin, intra = arrays.numbers(*(f"opt/{name}" for name in names))
    functions = {
        "infonce": partial(contrastive.robust_info_nce, tau=tau),
        "hard": partial(ranking.triplet_hardest, margin=margin),
        "hard_margin0.3": partial(ranking.triplet_hardest, margin=intra),
    }

    @jax.jit
    def evaluate(sims):
        values = {name: value_and_gradient(f, sims) for name, f in functions.items()}
        return values, ranking.per_pair_hinge(sims, margin=margin)

    for case in arrays.cases("sims"):
        stored = arrays.under(f"{case}/")
        values, per_pair = evaluate(stored["sims"])
        stored.check_losses(values)
        stored.check("losses, relative", per_pair, "eval_loss")
    for name in ("images", "captions"):
        vectors = jnp.asarray(arrays[f"centre/{name}"])
        statistics = {"batch_stats": {"mean": jnp.zeros(vectors.shape[1])}}
        ours, _ = Centring().apply(statistics, vectors, True, mutable=["batch_stats"])
        arrays.check("centred vectors", ours, f"centre/out_{name}")
    _check_queue(arrays.under("queue/"))


def _check_queue(stored: Arrays) -> None:
    images = captions = jnp.zeros_like(stored["after0_images"])
    count = jnp.int32(0)
    for n in range(4):
        new = {name: jnp.asarray(stored[f"add{n}_{name}"]) for name in ("images", "captions")}
        chosen = jnp.ones(len(new["images"]), bool)
        captions, _ = append(captions, count, new["captions"], chosen)
        images, count = append(images, count, new["images"], chosen)
        stored.check("queue", images, f"after{n}_images")
        stored.add("places", abs(int(count) % len(images) - int(stored[f"after{n}_pointer"])))
        is_full = int(count) >= len(images)
        stored.add("places", abs(is_full - int(stored[f"after{n}_full"])))
    query = jnp.asarray(stored["query"])
    for k in (1, 5):
        texts = nearest_mean(query, images, captions, count, k=k)
        stored.check("means of the nearest", texts, f"text_mean_k{k}")
        of_images = nearest_mean(query, captions, images, count, k=k)
        stored.check("means of the nearest", of_images, f"image_mean_k{k}")
