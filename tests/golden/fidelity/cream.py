"""CREAM: its loss, its split, and whole steps of one of its two networks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax.losses import contrastive
from l2rm_jax.methods import base, cream
from l2rm_jax.methods.networks import network
from l2rm_jax.methods.pair_values import replace_pair_values
from tests.golden.fidelity.arrays import Arrays, Errors, both_precisions, difference
from tests.golden.fidelity.compared_losses import value_and_gradient
from tests.golden.fidelity.compared_steps import Method, both_networks, unclipped
from tests.golden.fidelity.models import gradient_error
from tests.golden.fidelity.training import weights_after

LEARNING_RATE, GRAD_CLIP = 2e-4, 2.0
HARD_EPOCH, NOISY_EPOCH = 10, 15
BATCHES = ("clean0", "clean1", "hard0", "noisy0", "noisy1")


def losses(arrays: Arrays) -> Errors:
    [tau] = arrays.numbers("opt/temperature")

    @jax.jit
    def evaluate(sims, labels, small, mean):
        soft = partial(contrastive.soft_targets, labels=labels, tau=tau)
        functions = {
            "warmup": partial(contrastive.info_nce, tau=tau),
            "eval": partial(contrastive.info_nce_per_pair, tau=tau),
            "soft_filter0": partial(soft, cutoff=0.0),
            "soft_filter_small": partial(soft, cutoff=small),
            "soft_filter_mean": partial(soft, cutoff=mean),
            "soft_filter1": partial(soft, cutoff=1.0),
        }
        values = {name: value_and_gradient(f, sims) for name, f in functions.items()}
        return contrastive.pair_probabilities(sims, tau=tau), values

    for case in arrays.cases("in/sims"):
        stored = arrays.under(f"{case}/")
        inputs = (stored[f"in/{name}"] for name in ("sims", "filter_small", "filter_mean"))
        sims, *cutoffs = inputs
        predicted, values = evaluate(sims, stored["in/labels"][:, 0], *cutoffs)
        yield "predictions", difference(predicted, stored["predict"][0])
        for name, (value, gradient) in values.items():
            key = name if name == "eval" else f"{name}_loss"
            yield "losses, relative", both_precisions(value, stored, key, relative=True)
            theirs = stored[f"{name}_grad"]
            yield "gradients / largest", difference(gradient, theirs, relative=True)
    split = arrays.under("split/")
    for case in split.cases("in/prob_A"):
        stored = split.under(f"{case}/")
        ours = cream.subsets(stored["in/prob_A"], stored["in/prob_B"])
        for name, member in ours.items():
            yield "pairs called otherwise", np.sum(member != (stored[name] == 1))


def step(arrays: Arrays) -> Errors:
    """One network; the other stays as it is in the file."""
    size = len(arrays["in/clean0/lengths"])
    fields = {
        "cream__hard_epoch": HARD_EPOCH,
        "cream__noisy_epoch": NOISY_EPOCH,
        "loss__tau": 0.07,
        "optim__learning_rate": LEARNING_RATE,
        "optim__decay_epochs": 100,  # each case starts with a fresh optimiser at the full rate
    }
    method = Method("cream", arrays, ("w0_A/", "w0_B/"), size, **fields)
    batches = {
        name: method.batch(arrays, f"in/{name}/", n * size) for n, name in enumerate(BATCHES)
    }
    sizes = dict(zip(cream.SUBSETS, arrays["in/subset_sizes"], strict=True))
    start = method.start(batches["clean0"], int(sum(sizes.values())), epoch=NOISY_EPOCH + 5)
    start = replace_pair_values(start, _pair_values(arrays, size, sizes))
    tau, optimiser = method.config.loss.tau, base.model_optimiser(method.config)

    @jax.jit
    def labels_of(own, peer, given):
        return cream.labels_of(method.model, tau, own, peer, given)

    @jax.jit
    def update(state, batch, labels, cutoff):
        loss = partial(contrastive.soft_targets, labels=labels, cutoff=cutoff, tau=tau)
        return base.update_on(method.model, loss, optimiser, state, batch)

    given = {name: batches[f"{name}0"] for name in cream.SUBSETS}
    _, metrics = method.step(start, both_networks(given))
    for n, name in enumerate(cream.SUBSETS):
        error = both_precisions(metrics[f"loss_{name}_a"], arrays, f"all/{n}/loss", relative=True)
        yield f"losses of {'later steps' if n else 'the steps'}, relative", error
    for case in ("clean_only", "with_hard", "all", "all_mostly_clean"):
        stored = arrays.under(f"{case}/")
        own = network(start, int(stored["opt/trained"] == "B"))
        peer = network(start, int(stored["opt/trained"] != "B"))
        epoch, n = int(stored["opt/epoch"]), 0
        for iteration in range(2):
            # The hard pairs are used up after one step, but still predicted for the cutoff.
            given = {
                "clean": batches[f"clean{iteration}"],
                "hard": batches["hard0"],
                "noisy": batches[f"noisy{iteration}"],
            }
            labels = labels_of(own, peer, given)
            means = {name: np.mean(label) for name, label in labels.items()}
            share = float(stored["opt/ratio_clean"])
            counts = {name: np.float32(size) for name, size in sizes.items()}
            cutoffs = cream.cutoffs(means, counts, jnp.int32(epoch), HARD_EPOCH)
            if share > cream.MOSTLY_CLEAN:  # the file's sizes are those of another share
                cutoffs |= {"clean": 0.0, "hard": 0.0}
            starts = {"clean": 0, "hard": HARD_EPOCH, "noisy": NOISY_EPOCH}
            for name in (name for name, first in starts.items() if epoch >= first):
                if name == "hard" and iteration:
                    continue
                yield "labels", difference(labels[name], stored[f"{n}/labels"][:, 0])
                yield "cutoffs", difference(cutoffs[name], stored[f"{n}/filter"])
                own, values = update(own, given[name], labels[name], cutoffs[name])
                error = both_precisions(values["loss"], stored, f"{n}/loss", relative=True)
                which = "later steps" if n else "the steps"
                yield f"losses of {which}, relative", error
                norm = stored["grad_norms_before_clip"][n]
                error = difference(values["grad_norm"], norm, relative=True)
                yield "gradient norms, relative", error
                if case == "all" and n == 0:
                    gradients = unclipped(own, values["grad_norm"], GRAD_CLIP)
                    theirs = stored.under("grad_first_update_unclipped/")
                    error = gradient_error(gradients, theirs, arrays.under("w0_A/"))
                    yield "first gradients / largest", error
                n += 1
        if case == "all":
            # An entry of this gradient is below the rounding of the others: of all parameters left,
            # it is the one whose stored noise is the largest.
            also = ("weight_hh_l0_reverse",)
            yield from weights_after(stored, own, noisy=2 * 5 * LEARNING_RATE, also=also)


def _pair_values(arrays: Arrays, size: int, sizes: dict) -> dict[str, np.ndarray]:
    """Posteriors of the labels and subsets of all pairs, for network a and for network b."""
    posteriors = np.zeros((2, int(sum(sizes.values()))))
    for n, name in enumerate(BATCHES[:3]):
        probs = [arrays[f"in/{name}/prob_{letter}"][:, 0] for letter in "BA"]  # the peer's
        if name == "hard0":
            probs = [sum(probs) / 2] * 2
        posteriors[:, n * size : (n + 1) * size] = probs
    subset = np.repeat(np.arange(3), [int(n) for n in sizes.values()])
    return {cream.WEIGHT: posteriors, cream.SUBSET: np.stack([subset] * 2)}
