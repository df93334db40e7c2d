"""Losses of a similarity matrix and their gradients."""

import jax
import jax.numpy as jnp

from l2rm_jax.losses import contrastive, ranking, rematching
from l2rm_jax.losses.complementary import complementary_contrastive
from tests.golden.fidelity.arrays import Arrays

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


def value_and_gradient(f, *inputs):
    """Return a loss, and the gradient of its sum with respect to the first input."""
    return f(*inputs), jax.grad(lambda *x: jnp.sum(f(*x)))(*inputs)


def losses(arrays: Arrays) -> None:
    tau, margin = arrays.numbers("in/tau", "in/margin")
    functions = {
        **{name: lambda s, p, f=f: f(s, margin=margin) for name, f in RANKING.items()},
        **{name: lambda s, p, f=f: f(s, tau=tau) for name, f in CONTRASTIVE.items()},
        **{name: lambda s, p, f=f: f(s, p, tau=tau) for name, f in REMATCHING.items()},
    }

    # One program for all losses of a shape, because compilation takes most of the time.
    @jax.jit
    def square(sims, plan):
        return {name: value_and_gradient(f, sims, plan) for name, f in functions.items()}

    @jax.jit
    def rectangular(sims, plan):
        return {name: functions[name](sims, plan) for name in REMATCHING}

    for case in arrays.cases("sims"):
        stored = arrays.under(f"{case}/")
        sims, plan = stored["sims"], stored["soft_labels"]
        if sims.shape[0] == sims.shape[1]:
            stored.check_losses(square(sims, plan))
        else:
            for name, value in rectangular(sims, plan).items():
                if name in stored:
                    stored.check("losses, relative", value, name)


def complementary_losses(arrays: Arrays) -> None:
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
        stored.check_losses(all_negatives(stored["sims"]))
        for name, value in others(stored["sims"], stored["ratio0.5_mask"] > 0).items():
            stored.check("losses, relative", value, name)
