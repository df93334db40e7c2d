"""Steps of IN2R: vectors, two updates of its warm-up, two of its co-training, and the queue.

The refiner, which the library does not have, replaces the mean here, so that whole updates agree.
"""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from l2rm_jax import config as defaults
from l2rm_jax.devices.batch import Batch
from l2rm_jax.losses import ranking
from l2rm_jax.methods import base, in2r, make_method
from l2rm_jax.methods.networks import network, stack_states
from l2rm_jax.methods.pair_values import initial_state, replace_pair_values
from l2rm_jax.models.centred import Centring
from l2rm_jax.models.layers import BatchNorm
from l2rm_jax.published.conversion import (
    gru_from_state_dict,
    linear_from_state_dict,
    words_from_state_dict,
)
from tests.golden.fidelity.arrays import NOISE_MARGIN, Arrays, largest
from tests.golden.fidelity.compared_steps import LOSSES, NORMS, both_networks
from tests.golden.fidelity.models import model_of
from tests.golden.fidelity.semi_paired import NORM, known_difference
from tests.golden.fidelity.steps import OPTIONS

BATCHES = ("clean0", "clean1", "noisy0", "noisy1")
# Our names of the losses, and theirs.
NAMES = {
    "loss_pairs": "loss_pairs",
    "loss_images": "loss_images",
    "loss_captions": "loss_captions",
    "loss_rectified_captions": "loss_refined_text",
    "loss_rectified_images": "loss_refined_image",
}
HEADS, EPSILON = 4, 1e-5  # of the refiner's attention; of its layer normalisation
# Their gradients are zero by construction: a batch normalisation follows the bias.
NOISY = ("mlp.layers.0.bias", "mlp.bns.0.running_mean")


def in2r_step(arrays: Arrays) -> None:
    size = len(arrays["in/clean0/lengths"])
    config = defaults.default()
    config.method, config.train.batch_size, config.train.warmup_epochs = "in2r", size, 0
    config.in2r.queue_length, config.in2r.neighbours = (
        int(arrays["opt/queue"]),
        int(arrays["opt/k"]),
    )
    for field, option in OPTIONS.items():
        config.update_from_flattened_dict({field: float(arrays[f"opt/{option}"])})
    arrays.check("options", in2r.MARGIN_WITHIN, "opt/margin_intra")
    arrays.check("options", in2r.RECTIFIED, "opt/correction_weight")

    weights = arrays.under("w0/")
    model = model_of("centred", weights, **{"model.pooling": "gpo"})
    method = make_method(model, config)
    batches = {name: _batch(arrays, name, n * size, size) for n, name in enumerate(BATCHES)}
    state = initial_state(method, jax.random.key(0), batches["clean0"], len(BATCHES) * size)
    variables = jax.tree.map(jnp.asarray, _variables(weights))
    for side, stats in variables["batch_stats"].items():
        stats["centring"] = network(state, 0).batch_stats[side]["centring"]  # zeros
    start = state.replace(**jax.tree.map(lambda x: jnp.stack([x, x]), variables))
    _check_vectors(arrays.under("vectors/"), model, variables, batches["clean0"], config)
    with nn.intercept_methods(_count_padding):
        _check_warmup(arrays, method, start, batches)
        _check_cotraining(arrays, method, start, batches)


def _check_vectors(stored: Arrays, model, variables: dict, batch: Batch, config) -> None:
    """Compare vectors in evaluation mode; ours are not centred before an update."""
    codes = jax.jit(lambda batch: model.apply(variables, batch, method="encode"))(batch)
    centre = Centring()
    at = {"batch_stats": {"mean": jnp.zeros(codes[0].overall.shape[1])}}
    centred = []
    for code, name in zip(codes, ("images", "captions"), strict=True):
        stored.check("vectors", code.overall, f"{name}_before_centring")
        centred.append(centre.apply(at, code.overall, True, mutable=["batch_stats"])[0])
        stored.check("vectors", centred[-1], name)
    losses = ranking.per_pair_hinge(centred[0] @ centred[1].T, margin=config.loss.margin)
    stored.check(LOSSES, losses, "split_loss")


def _check_warmup(arrays: Arrays, method, state: base.TrainState, batches: Mapping) -> None:
    stored, step = arrays.under("warmup/"), jax.jit(method.step)
    for n in range(2):
        given = both_networks({"warmup": batches[f"clean{n}"]})
        state, metrics = step(state, given)
        stored.check(LOSSES, metrics["loss_a"], f"{n}/loss")
        stored.check(NORMS, metrics["grad_norm_a"], f"{n}/grad_norm_before_clip")
    _check_weights_after(arrays, "warmup/", network(state, 0))


def _check_cotraining(arrays: Arrays, method, state: base.TrainState, batches: Mapping) -> None:
    """Compare updates of network a; network b gives its queue alone, and stays as it is."""
    stored, length = arrays.under("cotrain/"), int(arrays["opt/queue"])
    queues = [_queue(arrays, f"in/{name}_queue", length) for name in ("own", "peer")]
    queue = jax.tree.map(lambda *x: jnp.stack(x), *queues)
    state = replace_pair_values(
        state.replace(own={**state.own, **queue}),
        {in2r.TRUSTED: np.stack([_trusted(arrays, len(BATCHES))] * 2)},
    )
    peer = network(state, 1)
    refiners = {name: dict(arrays.under(f"w0_refiner_{name}/")) for name in ("i2t", "t2i")}

    @jax.jit
    def step(refiners, state, given):
        # A step asks for the captions of images first.
        refined = partial(_refined, itertools.cycle((refiners["i2t"], refiners["t2i"])))
        with mock.patch.object(in2r, "nearest_mean", refined):
            return method.step(state, both_networks(given))

    for n in range(2):
        given = {"matched": batches[f"clean{n}"], "mismatched": batches[f"noisy{n}"]}
        state, metrics = step(refiners, state, given)
        for ours, theirs in NAMES.items():
            stored.check(LOSSES, metrics[f"{ours}_a"], f"{n}/{theirs}")
        stored.check(NORMS, metrics["grad_norm_a"], f"{n}/grad_norm_before_clip")
        own = network(state, 0)
        if n == 0:
            _check_gradient(arrays, own, metrics["grad_norm_a"])
            refiners = {name: _updated(arrays, name, each) for name, each in refiners.items()}
        state = stack_states([own, peer])
    for name in ("images", "captions"):
        stored.check("queue", own.own[name], f"own_queue_after_{name}")
    stored.check("places", int(own.own["count"]) % length, "own_queue_after_pointer")
    _check_weights_after(arrays, "cotrain/", own)


def _check_gradient(arrays: Arrays, own: base.TrainState, norm) -> None:
    """Compare the gradient of the first update, before clipping, as `steps.Method` does."""
    theirs = _given(arrays.under("cotrain/0/grad/"), arrays.under("w0/"))["params"]
    _, adam = own.opt_state
    scale = 10 * max(1.0, float(norm) / float(arrays["opt/grad_clip"]))
    errors = jax.tree.map(lambda mu, x: known_difference(scale * mu, x), adam.mu, theirs)
    most = largest(np.nanmax(np.abs(x), initial=0.0) for x in jax.tree.leaves(theirs))
    arrays.add("first gradients / largest", largest(jax.tree.leaves(errors)) / most)


def _check_weights_after(arrays: Arrays, part: str, own: base.TrainState) -> None:
    """Compare all stored parameters and statistics after two updates, beyond the authors' noise."""
    weights, after = arrays.under("w0/"), arrays.under(f"{part}w_after/")
    noise = arrays.under(f"noise/{part}w_after/")
    way = 2 * 2 * float(arrays["opt/lr"])
    allowed = {
        name: np.full(x.shape, max(NOISE_MARGIN * noise.get(name, 0.0), way * name.endswith(NOISY)))
        for name, x in after.items()
    }
    stats = {side: {"norm": each["norm"]} for side, each in own.batch_stats.items()}
    beyond = jax.tree.map(
        lambda a, b, t: known_difference(a, b) - float(np.max(t)),
        {"params": own.params, "batch_stats": stats},
        _given(after, weights),
        _given(allowed, weights, absent=0.0),
    )
    arrays.add("weights after, beyond noise", largest(jax.tree.leaves(beyond)))


def _batch(arrays: Arrays, name: str, first: int, size: int) -> Batch:
    stored = arrays.under(f"in/{name}/")
    regions, lengths = (stored[key].astype(np.int32) for key in ("regions", "lengths"))
    rows = first + np.arange(size, dtype=np.int32)
    return Batch(stored["images"], regions, stored["captions"], lengths, rows, rows)


def _queue(arrays: Arrays, prefix: str, length: int) -> dict:
    """A queue that holds the stored vectors."""
    given = {name: arrays[f"{prefix}_{name}"] for name in ("images", "captions")}
    count = len(given["images"])
    queue = {
        name: jnp.asarray(np.pad(x, [(0, length - count), (0, 0)])) for name, x in given.items()
    }
    return {**queue, "count": jnp.int32(count)}


def _trusted(arrays: Arrays, batches: int) -> np.ndarray:
    """Trusted pairs by the stored posteriors; the mean of the network's own is given."""
    peer = np.concatenate([arrays[f"in/clean{n}/posterior_of_peer"] for n in range(2)])
    own = np.append(np.full(len(peer), arrays["opt/mean_clean_posterior"]), np.float32(0))
    plan = in2r.mark_trusted(base.EpochPlan({}), np.append(peer, np.float32(0)), own)
    trusted = plan.values[in2r.TRUSTED][:-1]
    return np.pad(trusted, (0, len(trusted) * batches // 2 - len(trusted)))


def _refined(refiners, queries, keys, values, count, *, k: int):
    """Their refiner of the nearest values, without the gradient of its own parameters."""
    weights = next(refiners)
    filled = jnp.arange(len(keys)) < count
    cosines = jnp.where(filled[None], jax.lax.stop_gradient(queries) @ keys.T, -jnp.inf)
    near = values[jax.lax.top_k(cosines, k)[1]]
    size = near.shape[2] // HEADS

    def project(name: str, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"][None, None]

    def heads(name: str):
        return project(name, near).reshape(*near.shape[:2], HEADS, size)

    scores = jnp.einsum("nihd,njhd->nhij", heads("q_proj"), heads("k_proj")) / np.sqrt(size)
    context = jnp.einsum("nhij,njhd->nihd", jax.nn.softmax(scores, axis=-1), heads("v_proj"))
    x = near + project("output_layer", context.reshape(near.shape))
    x = jax.nn.standardize(x, axis=-1, epsilon=EPSILON)
    x = x * weights["layer_norm.weight"][None, None] + weights["layer_norm.bias"][None, None]
    mean = jnp.mean(x, axis=1)
    return mean / jnp.linalg.norm(mean, axis=1, keepdims=True)


def _updated(arrays: Arrays, name: str, before: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The refiner after AdamW's first step along their gradient, which is not clipped."""
    gradient = dict(arrays.under(f"cotrain/0/grad_refiner_{name}/"))
    lr, decay = arrays.numbers("opt/lr", "opt/weight_decay")
    optimiser = optax.adamw(lr, weight_decay=decay)
    with jax.numpy_dtype_promotion("standard"):
        change, _ = optimiser.update(gradient, optimiser.init(before), before)
    return jax.tree.map(lambda x, y: x + y, before, change)


def _count_padding(call: Callable, args, kwargs, context):
    """Make batch normalisation count padding up to the longest item, as the authors' code does."""
    if isinstance(context.module, BatchNorm) and context.method_name == "__call__":
        x, train, mask = args
        return call(x, train, mask.max(axis=0, keepdims=True))
    return call(*args, **kwargs)


def _variables(weights: Mapping) -> dict:
    """Return our variables from arrays with the names of the authors' parameters."""
    params, running = {}, {}
    for side, theirs in (("image_encoder", "img_enc"), ("text_encoder", "txt_enc")):
        layers = {"projection": "fc", "hidden": "mlp.layers.0", "residual": "mlp.layers.1"}
        norm = {key: weights[f"{theirs}.mlp.bns.0.{key}"] for key in NORM}
        params[side] = {
            **{
                ours: linear_from_state_dict(weights, f"{theirs}.{layer}")
                for ours, layer in layers.items()
            },
            "norm": {"scale": norm["weight"], "bias": norm["bias"]},
            "pooling": {
                "forward": gru_from_state_dict(weights, f"{theirs}.gpool.gru", ""),
                "backward": gru_from_state_dict(weights, f"{theirs}.gpool.gru", "_reverse"),
                "score": weights[f"{theirs}.gpool.linear.weight"].T,
            },
        }
        running[side] = {"norm": {"mean": norm["running_mean"], "var": norm["running_var"]}}
    params["text_encoder"]["words"] = words_from_state_dict(weights)
    return {"params": params, "batch_stats": running}


def _given(given: Mapping, weights: Mapping, absent: float = np.nan) -> dict:
    """Return our variables from the arrays in `given`, with `absent` for the others."""
    others = {name: np.full(np.shape(x), absent) for name, x in weights.items()}
    return _variables({**others, **given})
