"""Steps of the compared methods: DECL, CRCL, NCR, BiCro, SPS, CREAM."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax.devices.batch import Batch
from l2rm_jax.losses import complementary, consistency, contrastive, evidential
from l2rm_jax.methods import base, bicro, co_teaching, crcl, cream, decl, ncr
from l2rm_jax.methods.networks import network
from l2rm_jax.methods.pair_values import replace_pair_values
from tests.golden.fidelity.arrays import Arrays
from tests.golden.fidelity.steps import Method

LOSSES, NORMS = "losses of the steps, relative", "gradient norms, relative"
LATER_LOSSES = "losses of later steps, relative"
# Their names of the losses, by our streams.
NAMES = {"matched": "loss_labelled", "mismatched": "loss_unlabelled"}
FIRST_GRADIENTS = "grad_first_update_unclipped/"
# CREAM's file does not store these; its batches are in this order.
CREAM_LEARNING_RATE, HARD_EPOCH, NOISY_EPOCH = 2e-4, 10, 15
CREAM_BATCHES = ("clean0", "clean1", "hard0", "noisy0", "noisy1")


def decl_step(arrays: Arrays) -> None:
    size = len(arrays["in/0/lengths"])
    tau, triplet_weight = arrays.numbers("opt/tau", "opt/lambda1")
    arrays.check("options", evidential.KL_WEIGHT, "opt/lambda2")
    arrays.check("options", decl.NEGATIVES_PER_STEP, "opt/eta")
    arrays.check("options", decl.FEWEST_NEGATIVES, "opt/mu")
    arrays.check("options", size, "opt/batch_size")
    fields = {"decl__tau": tau, "decl__triplet_weight": triplet_weight}
    method = Method("decl", arrays, ("w0/",), size, **fields)
    batches = [method.batch(arrays, f"in/{n}/", n * size) for n in range(2)]
    flags = np.concatenate([arrays[f"in/{n}/preds"] for n in range(2)])
    before = int(arrays["opt/steps_before"])
    start = method.start(batches[0], 2 * size, step=before)

    split = arrays.under("split/")
    score = jax.jit(lambda state, batch: base.evaluate(method.model, state, batch))
    sims = score(start, batches[0])
    tanh = method.model.bounded(sims)
    both = evidential.evidence(tanh, tau=tau) + evidential.evidence(tanh, tau=tau).T
    split.check("split", sims, "sims")
    split.check("split", tanh, "tanh")
    split.check("split", both / both.sum(axis=1, keepdims=True), "norm_evidence")
    called = np.asarray(evidential.called_matched(tanh, tau=tau))
    split.add("pairs called otherwise", np.sum(called != split["called_matched"]))

    for part, values in (("warmup", np.ones(2 * size)), ("train", flags)):
        state = replace_pair_values(start, {decl.CALLED_MATCHED: values})
        stored = arrays.under(f"{part}/")
        for n, batch in enumerate(batches):
            theirs = min(int(stored[f"{n}/negatives"]), size - 1)
            count = min(int(decl.negatives(state.step + 1, size)), size - 1)
            stored.check("options", count, theirs)
            state, metrics = method.step(state, {"pairs": batch})
            stored.check(LOSSES, metrics["loss"], f"{n}/loss")
            stored.check(LOSSES, metrics["loss_evidential"], f"{n}/loss_edl")
            stored.check(LOSSES, metrics["loss_triplet"], f"{n}/loss_rdh")
            _check_norm(stored, n, metrics["grad_norm"])
            if n == 0 and part == "train":
                given = stored.under(FIRST_GRADIENTS)
                method.check_first_gradients(given, state, metrics["grad_norm"])
    method.check_weights_after(arrays.under("train/"), state, updates=2)


def crcl_step(arrays: Arrays) -> None:
    size, warm = len(arrays["in/0/lengths"]), int(arrays["opt/warm_epoch"])
    arrays.check("options", complementary.MOMENTUM, "opt/alpha")
    fields = {"train__warmup_epochs": warm, "crcl__schedules": ()}
    method = Method("crcl", arrays, ("w0/",), size, **fields)
    batches = [
        method.batch(arrays, f"in/{n}/")._replace(
            pair_index=arrays[f"in/{n}/pair_index"].astype(np.int32)
        )
        for n in range(2)
    ]
    labels = arrays["in/y_last"]
    for part, epoch in (("last_warm_epoch", warm - 1), ("refining", warm)):
        state = method.start(batches[0], len(labels), epoch=epoch)
        state = replace_pair_values(state, {crcl.LABEL: labels})
        stored = arrays.under(f"{part}/")
        for n, batch in enumerate(batches):
            state, metrics = method.step(state, {"pairs": batch})
            stored.check(LOSSES, metrics["loss"], f"{n}/loss")
            stored.check(LOSSES, metrics["loss_negative"], f"{n}/loss_negative_mean")
            _check_norm(stored, n, metrics["grad_norm"])
            stored.check("labels", state.own["pairs"][crcl.LABEL], f"{n}/y_after")
            if n == 0 and part == "refining":
                given = stored.under(FIRST_GRADIENTS)
                method.check_first_gradients(given, state, metrics["grad_norm"])
    method.check_weights_after(arrays.under("refining/"), state, updates=2)


class _CoTeaching:
    """Network a of NCR or BiCro; network b stays as it is in the file.

    Attributes:
      pairs: the labelled and the unlabelled batch of each iteration, as our streams.
      start: state of both networks before any update.
    """

    def __init__(self, name: str, arrays: Arrays):
        size = len(arrays["in/0/labelled_lengths"])
        fields = {"co_teaching__margins": "code", "co_teaching__mismatched_epoch": 0}
        self.arrays = arrays
        self.method = Method(name, arrays, ("w0_A/", "w0_B/"), size, **fields)
        self.pairs = [
            {
                "matched": self.method.batch(arrays, f"in/{n}/labelled_", n * size),
                "mismatched": self.method.batch(arrays, f"in/{n}/unlabelled_", (2 + n) * size),
            }
            for n in range(2)
        ]
        self.start = self.method.start(self.pairs[0]["matched"], 4 * size)

    @partial(jax.jit, static_argnums=0)
    def update(self, state: base.TrainState, batch: Batch, labels):
        """Return the state and metrics after an update of one network with given labels."""
        loss = co_teaching.soft_triplet(self.method.config, labels)
        optimiser = base.model_optimiser(self.method.config)
        return base.update_on(self.method.model, loss, optimiser, state, batch)

    def check_first_step(self, start: base.TrainState, streams: tuple[str, ...]) -> None:
        """Compare the updates of network a in one step of both, in their order."""
        _, metrics = self.method.step(start, both_networks(self.pairs[0]))
        stored = self.arrays.under("second_half/")
        for order, stream in enumerate(streams):
            stored.check(LOSSES, metrics[f"loss_{stream}_a"], f"0/{NAMES[stream]}")
            _check_norm(stored, order, metrics[f"grad_norm_{stream}_a"])

    def check_updates(
        self, state: base.TrainState, labels: Mapping[str, Any], part: str, n: int
    ) -> base.TrainState:
        """Compare the updates of iteration n, in the order of `labels`; return the new state."""
        stored = self.arrays.under(f"{part}/")
        for order, (stream, label) in enumerate(labels.items()):
            state, metrics = self.update(state, self.pairs[n][stream], label)
            stored.check(LOSSES, metrics["loss"], f"{n}/{NAMES[stream]}")
            _check_norm(stored, n * len(labels) + order, metrics["grad_norm"])
            if n == order == 0 and part == "second_half":
                given = stored.under(FIRST_GRADIENTS)
                self.method.check_first_gradients(given, state, metrics["grad_norm"])
        return state


def ncr_step(arrays: Arrays) -> None:
    """Compare updates of network a.

    A later update takes the labels of the file: ours depend, in evaluation mode, on biases that
    train mode cancels, whose values are noise, and a hinge that switches changes the gradient.
    """
    run = _CoTeaching("ncr", arrays)
    size, margin = run.method.size, float(arrays["opt/margin"])
    posterior = np.concatenate([arrays[f"in/{n}/prob"][:, 0] for n in range(2)])
    values = {ncr.WEIGHT: np.stack([np.concatenate([posterior, posterior])] * 2)}
    start = replace_pair_values(run.start, values)
    own, peer = network(start, 0), network(start, 1)
    predict = jax.jit(lambda state, batch: ncr.predict(run.method.model, margin, state, batch))

    run.check_first_step(start, ("matched", "mismatched"))
    for part in ("first_half", "second_half"):
        state = own
        for n, batches in enumerate(run.pairs):
            out = arrays.under(f"{part}/{n}/")
            predicted = predict(state, batches["matched"])
            out.check("predictions", predicted, "predict_own_labelled")
            label = ncr.clean_labels(arrays[f"in/{n}/prob"][:, 0], predicted, "code")
            out.check("labels", label, "target_labelled")
            labels = {"matched": out["target_labelled"]}
            if part == "second_half":
                both = [predict(each, batches["mismatched"]) for each in (state, peer)]
                out.check("predictions", both[0], "predict_own_unlabelled")
                out.check("predictions", both[1], "predict_peer_unlabelled")
                out.check("labels", sum(both)[:, None] / 2, "target_unlabelled")
                labels["mismatched"] = np.broadcast_to(out["target_unlabelled"], (size, size))
            state = run.check_updates(state, labels, part, n)
    run.method.check_weights_after(arrays.under("second_half/"), state, updates=4)


def bicro_step(arrays: Arrays) -> None:
    """Compare updates of network a; network b gives the labels."""
    arrays.check("options", bicro.WARMUP_SHARE, "opt/warmup_rate")
    arrays.check("options", consistency.SMALLEST_LABEL, "opt/noise_tem")
    run = _CoTeaching("bicro", arrays)
    method, peer = run.method, network(run.start, 1)
    labels_of = jax.jit(lambda batches: bicro.labels(method.model, method.config, peer, batches))

    state, stored = run.start, arrays.under("warmup/")
    for n, batches in enumerate(run.pairs):
        state, metrics = method.step(state, both_networks({"warmup": batches["matched"]}))
        stored.check(LOSSES, metrics["loss_a"], f"{n}/loss")
        _check_norm(stored, n, metrics["grad_norm_a"])
    run.check_first_step(run.start, ("mismatched", "matched"))
    for part, streams in (("first_half", ("matched",)), ("second_half", ("mismatched", "matched"))):
        state, stored = network(run.start, 0), arrays.under(f"{part}/")
        for n, batches in enumerate(run.pairs):
            ours = labels_of(batches)
            labels = {stream: ours[stream] for stream in streams}
            for stream, label in labels.items():
                name = NAMES[stream].removeprefix("loss_")
                stored.check("labels", label[0], f"{n}/y_{name}")
            state = run.check_updates(state, labels, part, n)
    method.check_weights_after(arrays.under("second_half/"), state, updates=4)


def sps_step(arrays: Arrays) -> None:
    size = len(arrays["in/lengths"])
    method = Method("sps", arrays, ("w0/", "w0/"), size, loss__tau=0.07, optim__learning_rate=2e-4)
    batch = method.batch(arrays, "in/")
    state, metrics = method.step(method.start(batch, size), both_networks({"strict": batch}))
    for name in ("loss_infonce", "loss_symmetry", "loss_structure"):
        ours = metrics[f"{name.replace('infonce', 'info_nce')}_strict_a"]
        arrays.check(LOSSES, ours, name)
    arrays.check(NORMS, metrics["grad_norm_a"], "grad_norm_before_clip")
    single, given = network(state, 0), arrays.under("grad_unclipped/")
    method.check_first_gradients(given, single, metrics["grad_norm_a"])
    method.check_weights_after(arrays, single, updates=1)


def cream_step(arrays: Arrays) -> None:
    """Compare updates of one network; the other stays as it is in the file."""
    size = len(arrays["in/clean0/lengths"])
    fields = {
        "cream__hard_epoch": HARD_EPOCH,
        "cream__noisy_epoch": NOISY_EPOCH,
        "loss__tau": 0.07,
        "optim__learning_rate": CREAM_LEARNING_RATE,
        "optim__decay_epochs": 100,  # each case starts with a fresh optimiser at the full rate
    }
    method = Method("cream", arrays, ("w0_A/", "w0_B/"), size, **fields)
    batches = {
        name: method.batch(arrays, f"in/{name}/", n * size) for n, name in enumerate(CREAM_BATCHES)
    }
    sizes = dict(zip(cream.SUBSETS, arrays["in/subset_sizes"], strict=True))
    start = method.start(batches["clean0"], int(sum(sizes.values())), epoch=NOISY_EPOCH + 5)
    start = replace_pair_values(start, _cream_pair_values(arrays, size, sizes))
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
        losses = LATER_LOSSES if n else LOSSES
        arrays.check(losses, metrics[f"loss_{name}_a"], f"all/{n}/loss")
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
                stored.check("labels", labels[name], stored[f"{n}/labels"][:, 0])
                stored.check("cutoffs", cutoffs[name], f"{n}/filter")
                own, metrics = update(own, given[name], labels[name], cutoffs[name])
                stored.check(LATER_LOSSES if n else LOSSES, metrics["loss"], f"{n}/loss")
                _check_norm(stored, n, metrics["grad_norm"])
                if case == "all" and n == 0:
                    first = stored.under(FIRST_GRADIENTS)
                    method.check_first_gradients(first, own, metrics["grad_norm"])
                n += 1
        if case == "all":
            # An entry of this gradient is below the rounding of the others: of all parameters left,
            # it is the one whose stored noise is the largest.
            also = ("weight_hh_l0_reverse",)
            method.check_weights_after(stored, own, updates=5, also=also)


def _cream_pair_values(arrays: Arrays, size: int, sizes: dict) -> dict[str, np.ndarray]:
    """Return posteriors of the labels and subsets of all pairs, for network a and for network b."""
    posteriors = np.zeros((2, int(sum(sizes.values()))))
    for n, name in enumerate(CREAM_BATCHES[:3]):
        probs = [arrays[f"in/{name}/prob_{letter}"][:, 0] for letter in "BA"]  # the peer's
        if name == "hard0":
            probs = [sum(probs) / 2] * 2
        posteriors[:, n * size : (n + 1) * size] = probs
    subset = np.repeat(np.arange(3), [int(n) for n in sizes.values()])
    return {cream.WEIGHT: posteriors, cream.SUBSET: np.stack([subset] * 2)}


def both_networks(batches: Mapping[str, Batch]) -> dict[str, Batch]:
    """Return the same batches for both networks."""
    return {f"{name}_{letter}": batch for name, batch in batches.items() for letter in "ab"}


def _check_norm(stored: Arrays, n: int, norm) -> None:
    stored.check(NORMS, norm, stored["grad_norms_before_clip"][n])
