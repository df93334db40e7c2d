"""Steps of the compared methods: DECL, CRCL, NCR, BiCro, SPS."""

from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax import config as defaults
from l2rm_jax.data.batches import Batch
from l2rm_jax.losses import complementary, consistency, evidential
from l2rm_jax.methods import base, bicro, co_teaching, crcl, decl, make_method, ncr
from l2rm_jax.methods.networks import network, stack_states
from l2rm_jax.methods.pair_values import initial_state, replace_pair_values
from l2rm_jax.published.conversion import model_from_state_dict, variables_from_state_dict
from tests.golden.fidelity.arrays import Arrays, Errors, both_precisions, difference
from tests.golden.fidelity.models import gradient_error
from tests.golden.fidelity.training import weights_after

# Options of the files, by the field of the config.
OPTIONS = {
    "loss.margin": "margin",
    "loss.tau": "tau",
    "optim.learning_rate": "lr",
    "optim.grad_clip": "grad_clip",
    "optim.weight_decay": "weight_decay",
}
# Their names of the losses, by our streams.
NAMES = {"matched": "loss_labelled", "mismatched": "loss_unlabelled"}


class Method:
    """A method with the weights of a file, its settings, and its batches.

    Args:
      name: name of the method.
      arrays: the file.
      weights: prefixes of the weights of each network.
      size: number of pairs in a batch.
      **fields: config fields besides the file's options, by key with `__` for a dot.
    """

    def __init__(self, name: str, arrays: Arrays, weights: tuple[str, ...], size: int, **fields):
        self.config = config = defaults.default()
        config.method, config.train.batch_size = name, size
        options = {
            key: float(arrays[f"opt/{option}"])
            for key, option in OPTIONS.items()
            if f"opt/{option}" in arrays and not (name == "decl" and option == "tau")
        }
        fields = {key.replace("__", "."): value for key, value in fields.items()}
        config.update_from_flattened_dict({"train.warmup_epochs": 0, **options, **fields})
        self.weights = [arrays.under(prefix) for prefix in weights]
        self.model = model_from_state_dict(self.weights[0], dropout=0.0)
        self.method = make_method(self.model, config)
        self.step = jax.jit(self.method.step)
        self.size = size

    def start(self, batch: Batch, pairs: int, epoch: int = 0, step: int = 0) -> base.TrainState:
        """The state with the file's weights, before any update."""
        state = initial_state(self.method, jax.random.key(0), batch, pairs)
        count = self.method.networks
        singles = [state] if count == 1 else [network(state, n) for n in range(count)]
        loaded = [
            each.replace(**jax.tree.map(jnp.asarray, variables_from_state_dict(weights)))
            for each, weights in zip(singles, self.weights, strict=True)
        ]
        whole = loaded[0] if count == 1 else stack_states(loaded)
        numbers = {"epoch": jnp.int32(epoch), "step": jnp.int32(step), "key": state.key}
        return whole.replace(**numbers)

    def batch(self, arrays: Arrays, prefix: str, first: int = 0) -> Batch:
        """The batch at `prefix`; its pairs are numbered from `first`."""
        images, tokens, lengths = (
            arrays[f"{prefix}{name}"] for name in ("images", "captions", "lengths")
        )
        index = first + np.arange(self.size, dtype=np.int32)
        regions = np.full(self.size, images.shape[1], np.int32)
        return Batch(images, regions, tokens, lengths, pair_index=index, image_index=index)


def decl_step(arrays: Arrays) -> Errors:
    size = len(arrays["in/0/lengths"])
    tau, triplet_weight, kl_weight = arrays.numbers("opt/tau", "opt/lambda1", "opt/lambda2")
    yield "options", abs(kl_weight - evidential.KL_WEIGHT)
    yield "options", abs(float(arrays["opt/eta"]) - decl.NEGATIVES_PER_STEP)
    yield "options", abs(float(arrays["opt/mu"]) - decl.FEWEST_NEGATIVES)
    yield "options", abs(float(arrays["opt/batch_size"]) - size)
    fields = {"decl__tau": tau, "decl__triplet_weight": triplet_weight}
    method = Method("decl", arrays, ("w0/",), size, **fields)
    batches = [method.batch(arrays, f"in/{n}/", n * size) for n in range(2)]
    flags = np.concatenate([arrays[f"in/{n}/preds"] for n in range(2)])
    before = int(arrays["opt/steps_before"])
    start = method.start(batches[0], 2 * size, step=before)

    score = jax.jit(lambda state, batch: base.evaluate(method.model, state, batch))
    sims = score(start, batches[0])
    yield "split", difference(sims, arrays["split/sims"])
    tanh = method.model.bounded(sims)
    yield "split", difference(tanh, arrays["split/tanh"])
    both = evidential.evidence(tanh, tau=tau) + evidential.evidence(tanh, tau=tau).T
    norm = both / both.sum(axis=1, keepdims=True)
    yield "split", difference(norm, arrays["split/norm_evidence"])
    called = evidential.called_matched(tanh, tau=tau)
    yield (
        "pairs called otherwise",
        np.count_nonzero(np.asarray(called) != arrays["split/called_matched"]),
    )

    for part, values in (("warmup", np.ones(2 * size)), ("train", flags)):
        state = replace_pair_values(start, {decl.CALLED_MATCHED: values})
        stored = arrays.under(f"{part}/")
        for n, batch in enumerate(batches):
            count = decl.negatives(state.step + 1, size)
            theirs = min(int(stored[f"{n}/negatives"]), size - 1)
            yield "options", abs(min(int(count), size - 1) - theirs)
            state, metrics = method.step(state, {"pairs": batch})
            names = {"loss": "loss", "loss_edl": "loss_evidential", "loss_rdh": "loss_triplet"}
            yield from _losses(stored, n, {key: metrics[name] for key, name in names.items()})
            yield from _norm(stored, n, metrics["grad_norm"])
            if n == 0 and part == "train":
                yield from _first_gradients(arrays, stored, state, metrics, "w0/")
    yield from weights_after(arrays.under("train/"), state, noisy=_noisy(arrays, 2))


def crcl_step(arrays: Arrays) -> Errors:
    size, warm = len(arrays["in/0/lengths"]), int(arrays["opt/warm_epoch"])
    yield "options", abs(float(arrays["opt/alpha"]) - complementary.MOMENTUM)
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
            yield from _losses(
                stored,
                n,
                {
                    "loss": metrics["loss"],
                    "loss_negative_mean": metrics["loss_negative"],
                },
            )
            yield from _norm(stored, n, metrics["grad_norm"])
            yield "labels", difference(state.own["pairs"][crcl.LABEL], stored[f"{n}/y_after"])
            if n == 0 and part == "refining":
                yield from _first_gradients(arrays, stored, state, metrics, "w0/")
    yield from weights_after(arrays.under("refining/"), state, noisy=_noisy(arrays, 2))


def ncr_step(arrays: Arrays) -> Errors:
    """Network a of two; b stays as it is in the file.

    A later update takes the labels of the file: ours depend, in evaluation mode, on biases that
    train mode cancels, whose values are noise, and a hinge that switches changes the gradient.
    """
    size = len(arrays["in/0/labelled_lengths"])
    margin = float(arrays["opt/margin"])
    fields = {"co_teaching__margins": "code", "co_teaching__mismatched_epoch": 0}
    method = Method("ncr", arrays, ("w0_A/", "w0_B/"), size, **fields)
    pairs = _labelled(method, arrays)
    posterior = np.concatenate([arrays[f"in/{n}/prob"][:, 0] for n in range(2)])
    values = {ncr.WEIGHT: np.stack([np.concatenate([posterior, posterior])] * 2)}
    start = replace_pair_values(method.start(pairs[0]["matched"], 4 * size), values)
    own, peer = network(start, 0), network(start, 1)
    predict = jax.jit(lambda state, batch: ncr.predict(method.model, margin, state, batch))
    update = _update_of(method)

    _, metrics = method.step(start, both_networks(pairs[0]))
    yield from _updates(arrays.under("second_half/"), 0, metrics, ("matched", "mismatched"))
    for part in ("first_half", "second_half"):
        state, stored = own, arrays.under(f"{part}/")
        for n, given in enumerate(pairs):
            out = stored.under(f"{n}/")
            predicted = predict(state, given["matched"])
            yield "predictions", difference(predicted, out["predict_own_labelled"])
            label = ncr.clean_labels(arrays[f"in/{n}/prob"][:, 0], predicted, "code")
            labels = {"matched": out["target_labelled"]}
            yield "labels", difference(label, labels["matched"])
            if part == "second_half":
                both = [predict(each, given["mismatched"]) for each in (state, peer)]
                for name, ours in zip(("own", "peer"), both, strict=True):
                    theirs = out[f"predict_{name}_unlabelled"]
                    yield "predictions", difference(ours, theirs)
                target = out["target_unlabelled"]
                yield "labels", difference(sum(both)[:, None] / 2, target)
                labels["mismatched"] = np.broadcast_to(target, (size, size))
            state = yield from _one_by_one(update, state, given, labels, arrays, part, n)
    yield from weights_after(arrays.under("second_half/"), state, noisy=_noisy(arrays, 4))


def bicro_step(arrays: Arrays) -> Errors:
    """Network a of two; b, which gives the labels, stays as it is in the file."""
    size = len(arrays["in/0/labelled_lengths"])
    yield "options", abs(float(arrays["opt/warmup_rate"]) - bicro.WARMUP_SHARE)
    yield "options", abs(float(arrays["opt/noise_tem"]) - consistency.SMALLEST_LABEL)
    fields = {"co_teaching__margins": "code", "co_teaching__mismatched_epoch": 0}
    method = Method("bicro", arrays, ("w0_A/", "w0_B/"), size, **fields)
    pairs = _labelled(method, arrays)
    start = method.start(pairs[0]["matched"], 4 * size)
    peer = network(start, 1)
    labels_of = jax.jit(lambda batches: bicro.labels(method.model, method.config, peer, batches))
    update = _update_of(method)

    state, stored = start, arrays.under("warmup/")
    for n, given in enumerate(pairs):
        state, metrics = method.step(state, both_networks({"warmup": given["matched"]}))
        yield from _losses(stored, n, {"loss": metrics["loss_a"]})
        yield from _norm(stored, n, metrics["grad_norm_a"])
    _, metrics = method.step(start, both_networks(pairs[0]))
    yield from _updates(arrays.under("second_half/"), 0, metrics, ("mismatched", "matched"))
    for part, streams in (("first_half", ("matched",)), ("second_half", ("mismatched", "matched"))):
        state, stored = network(start, 0), arrays.under(f"{part}/")
        for n, given in enumerate(pairs):
            found = labels_of(given)
            labels = {stream: found[stream] for stream in streams}
            for stream, label in labels.items():
                name = NAMES[stream].removeprefix("loss_")
                yield "labels", difference(label[0], stored[f"{n}/y_{name}"])
            state = yield from _one_by_one(update, state, given, labels, arrays, part, n)
    yield from weights_after(arrays.under("second_half/"), state, noisy=_noisy(arrays, 4))


def sps_step(arrays: Arrays) -> Errors:
    size = len(arrays["in/lengths"])
    method = Method("sps", arrays, ("w0/", "w0/"), size, loss__tau=0.07, optim__learning_rate=2e-4)
    batch = method.batch(arrays, "in/")
    state, metrics = method.step(method.start(batch, size), both_networks({"strict": batch}))
    for name in ("loss_infonce", "loss_symmetry", "loss_structure"):
        ours = metrics[f"{name.replace('infonce', 'info_nce')}_strict_a"]
        yield "losses of the steps, relative", both_precisions(ours, arrays, name, relative=True)
    norm = metrics["grad_norm_a"]
    error = difference(norm, arrays["grad_norm_before_clip"], relative=True)
    yield "gradient norms, relative", error
    single = network(state, 0)
    gradients = unclipped(single, norm, float(method.config.optim.grad_clip))
    error = gradient_error(gradients, arrays.under("grad_unclipped/"), arrays.under("w0/"))
    yield "first gradients / largest", error
    yield from weights_after(arrays, single, noisy=2 * 2e-4)


def _labelled(method: Method, arrays: Arrays) -> list[dict[str, Batch]]:
    """The labelled and the unlabelled batch of each iteration, as our streams."""
    size = method.size
    return [
        {
            "matched": method.batch(arrays, f"in/{n}/labelled_", n * size),
            "mismatched": method.batch(arrays, f"in/{n}/unlabelled_", (2 + n) * size),
        }
        for n in range(2)
    ]


def both_networks(batches: Mapping[str, Batch]) -> dict[str, Batch]:
    """The same batches for both networks."""
    return {f"{name}_{letter}": each for name, each in batches.items() for letter in "ab"}


def _update_of(method: Method):
    """An update of one network with given labels, compiled once."""
    optimiser = base.model_optimiser(method.config)

    @jax.jit
    def update(state: base.TrainState, batch: Batch, labels):
        loss = co_teaching.soft_triplet(method.config, labels)
        return base.update_on(method.model, loss, optimiser, state, batch)

    return update


def _one_by_one(
    update: Callable,
    state: base.TrainState,
    batches: Mapping[str, Batch],
    labels: Mapping[str, Any],
    arrays: Arrays,
    part: str,
    n: int,
) -> Generator[tuple[str, float], None, base.TrainState]:
    """The updates of network a in iteration n, in the order of `labels`; returns its new state."""
    stored = arrays.under(f"{part}/")
    for order, (stream, label) in enumerate(labels.items()):
        state, metrics = update(state, batches[stream], label)
        yield from _losses(stored, n, {NAMES[stream]: metrics["loss"]})
        yield from _norm(stored, n * len(labels) + order, metrics["grad_norm"])
        if n == order == 0 and part == "second_half":
            yield from _first_gradients(arrays, stored, state, metrics, "w0_A/")
    return state


def _losses(stored: Arrays, n: int, ours: Mapping[str, Any]) -> Errors:
    for name, value in ours.items():
        error = both_precisions(value, stored, f"{n}/{name}", relative=True)
        yield "losses of the steps, relative", error


def _norm(stored: Arrays, n: int, norm) -> Errors:
    theirs = stored["grad_norms_before_clip"][n]
    yield "gradient norms, relative", difference(norm, theirs, relative=True)


def _updates(stored: Arrays, n: int, metrics: Mapping, streams: tuple[str, ...]) -> Errors:
    """Losses and gradient norms of the updates of network a, in their order."""
    for order, stream in enumerate(streams):
        yield from _losses(stored, n, {NAMES[stream]: metrics[f"loss_{stream}_a"]})
        yield from _norm(stored, n * len(streams) + order, metrics[f"grad_norm_{stream}_a"])


def unclipped(state: base.TrainState, norm, clip: float):
    """The gradient of the only update: Adam's first moment is a tenth of the clipped one."""
    _, adam = state.opt_state
    scale = 10 * max(1.0, float(norm) / clip)
    return jax.tree.map(lambda moment: scale * moment, adam.mu)


def _first_gradients(arrays, stored, state, metrics, weights: str) -> Errors:
    clip = float(arrays["opt/grad_clip"])
    norm = metrics["grad_norm"]
    given = stored.under("grad_first_update_unclipped/")
    error = gradient_error(unclipped(state, norm, clip), given, arrays.under(weights))
    yield "first gradients / largest", error


def _noisy(arrays: Arrays, updates: int) -> float:
    """Twice the way that Adam can go in this many updates."""
    return 2 * updates * float(arrays["opt/lr"])
