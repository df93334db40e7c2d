"""Losses of a similarity matrix and their gradients."""

import jax
import jax.numpy as jnp

from l2rm_jax.losses import contrastive, ranking, rematching
from l2rm_jax.losses.complementary import complementary_contrastive
from tests.golden.fidelity.arrays import Arrays, Errors, both_precisions, difference

RANKING = {
    "triplet_warmup": ranking.triplet_mean,
    "triplet_max_violation": ranking.triplet_hardest,
    "triplet_eval_loss": ranking.per_pair_hinge,
}
CONTRASTIVE = {"InfoNCE": contrastive.info_nce, "RCE": contrastive.robust_info_nce}
REMATCHING = {
    "Soft_InfoNCE": rematching.soft_info_nce,
    "KL": rematching.kl,
    "sym_KL": rematching.symmetric_kl,
    "JS": rematching.jensen_shannon,
}
# Our names of the bounds, by theirs.
COMPLEMENTARY = {"log": "log", "tan": "tan", "abs": "mae", "exp": "exp", "gce": "gce"}
RCL_MARGIN = 0.2  # the margin of the triplet losses in RCL's file, which does not store it


def losses(arrays: Arrays) -> Errors:
    tau, margin = arrays.numbers("in/tau", "in/margin")
    functions = {
        **{name: lambda s, p, f=f: f(s, margin=margin) for name, f in RANKING.items()},
        **{name: lambda s, p, f=f: f(s, tau=tau) for name, f in CONTRASTIVE.items()},
        **{name: lambda s, p, f=f: f(s, p, tau=tau) for name, f in REMATCHING.items()},
    }

    # One program for all losses of a shape, because compilation takes most of the time.
    @jax.jit
    def square(sims, plan):
        return {name: (f(sims, plan), _gradient(f)(sims, plan)) for name, f in functions.items()}

    @jax.jit
    def rectangular(sims, plan):
        return {name: (functions[name](sims, plan), None) for name in REMATCHING}

    for case in arrays.cases("sims"):
        stored = arrays.under(f"{case}/")
        sims, plan = stored["sims"], stored["soft_labels"]
        ours = square if sims.shape[0] == sims.shape[1] else rectangular
        for name, (value, gradient) in ours(sims, plan).items():
            if name in stored:
                yield "losses, relative", both_precisions(value, stored, name, relative=True)
            if gradient is not None:
                theirs = stored[f"{name}_grad_f64"]
                yield "gradients / largest", difference(gradient, theirs, relative=True)


def complementary_losses(arrays: Arrays) -> Errors:
    tau, q = arrays.numbers("in/tau", "in/q")

    def bounded(name):
        return lambda sims, mask=None: complementary_contrastive(
            sims, tau=tau, bound=COMPLEMENTARY[name], q=q, negatives=mask
        )

    functions = {
        **{name: bounded(name) for name in COMPLEMENTARY},
        "infoNCE": lambda sims: contrastive.info_nce(sims, tau=tau),
    }

    @jax.jit
    def all_negatives(sims):
        return {name: jax.value_and_grad(f)(sims) for name, f in functions.items()}

    @jax.jit
    def others(sims, mask):
        return {
            "ratio0.5_log": functions["log"](sims, mask),
            "ratio0.5_gce": functions["gce"](sims, mask),
            "contrastive_max1": ranking.triplet_hardest(sims, margin=RCL_MARGIN),
            # Their loss is the sum over negatives, ours the mean.
            "contrastive_max0": len(sims) * ranking.triplet_mean(sims, margin=RCL_MARGIN),
        }

    for case in arrays.cases("sims"):
        stored = arrays.under(f"{case}/")
        for name, (value, gradient) in all_negatives(stored["sims"]).items():
            yield "losses, relative", both_precisions(value, stored, name, relative=True)
            theirs = stored[f"{name}_grad_f64"]
            yield "gradients / largest", difference(gradient, theirs, relative=True)
        for name, value in others(stored["sims"], stored["ratio0.5_mask"] > 0).items():
            yield "losses, relative", difference(value, stored[name], relative=True)


def _gradient(function):
    return jax.grad(lambda sims, plan: jnp.sum(function(sims, plan)))
