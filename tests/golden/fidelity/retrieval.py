"""Recalls of similarity matrices, and the beta mixture's split of losses."""

import numpy as np

from l2rm_jax import mixture
from l2rm_jax.evaluation import recall
from tests.golden.fidelity.arrays import Arrays, Errors, more_wrong
from tests.golden.fidelity.models import recall_difference


def metrics(arrays: Arrays) -> Errors:
    for case in arrays.cases("sims"):
        out = arrays.under(f"{case}/")
        sims = out["sims"]
        per_image = sims.shape[1] // sims.shape[0]
        for prefix in ("", "rcsl_"):
            yield "recalls and ranks", recall_difference(sims, per_image, out, prefix)
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
            yield "ranks that differ", np.sum(ours != out[f"{way}_ranks"])
            yield "ranks that differ", np.sum((ours == 0) != first[way])


def beta_mixture(arrays: Arrays) -> Errors:
    for case in arrays.cases("losses"):
        stored = arrays.under(f"{case}/")
        losses, is_clean = stored["losses"], stored["clean"] == 1
        ours = mixture.fit(losses).mismatched_posterior(losses) <= 0.5
        accuracy = stored["own/accuracy_arazo10"]
        yield "wrong pairs, more than the stored fit's", more_wrong(ours, is_clean, accuracy)
