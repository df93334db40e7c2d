"""Largest difference from the authors' code, file by file: python -m experiments.fidelity

Reads the arrays that their code computed (tests/golden, or the directory in L2RM_GOLDEN) and prints
one line per quantity: what our code gives on the same inputs, the largest error, the tolerance.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax import config as defaults
from l2rm_jax import mixture, recall
from l2rm_jax.data.batches import Batch
from l2rm_jax.losses import contrastive, ranking, rematching
from l2rm_jax.methods import make_method
from l2rm_jax.methods.cost import MINIMUM, Reserved, cost
from l2rm_jax.models.encoders import RegionEncoder, WordEncoder
from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.torch_import import (
    cost_from_state_dict,
    linear_from_state_dict,
    model_from_state_dict,
    variables_from_state_dict,
    words_from_state_dict,
)

GOLDEN = Path(os.environ.get("L2RM_GOLDEN") or Path(__file__).parents[1] / "tests" / "golden")
Row = tuple[str, float, float]  # quantity, largest error, tolerance


def under(arrays: dict, prefix: str) -> dict:
    return {key.removeprefix(prefix): x for key, x in arrays.items() if key.startswith(prefix)}


def difference(ours, theirs, relative: bool = False) -> float:
    """Largest absolute error, or the same over the largest entry."""
    error = np.max(np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)))
    return float(error / np.max(np.abs(theirs))) if relative else float(error)


def inputs_of(arrays: dict) -> tuple:
    return tuple(arrays[f"in/{name}"] for name in ("images", "captions", "lengths"))


def encoders(arrays: dict) -> Iterator[Row]:
    weights = under(arrays, "w/")
    images, tokens, lengths = inputs_of(arrays)
    vocabulary_size, word_dim = weights["txt_enc.embed.weight"].shape
    embed_dim = weights["img_enc.fc.weight"].shape[0]
    params = {"projection": linear_from_state_dict(weights, "img_enc.fc")}
    regions = RegionEncoder(embed_dim).apply({"params": params}, images)
    yield "regions", difference(regions, arrays["out/img_emb"]), 1e-5
    mask = (np.arange(tokens.shape[1]) < lengths[:, None]).astype(np.float32)
    encoder = WordEncoder(vocabulary_size, word_dim, embed_dim, dropout=0.0)
    words = encoder.apply({"params": words_from_state_dict(weights)}, tokens, mask, False)
    yield "words", difference(words, arrays["out/cap_emb"]), 1e-5


def similarity(arrays: dict) -> Iterator[Row]:
    weights = under(arrays, "w/")
    model = model_from_state_dict(weights, dropout=0.0)
    variables, inputs = variables_from_state_dict(weights), inputs_of(arrays)
    yield "sims, eval", difference(model.apply(variables, *inputs), arrays["out/eval/sims"]), 1e-5

    def loss(params):
        sims, stats = model.apply(
            {**variables, "params": params},
            *inputs,
            train=True,
            method="global_similarity",
            mutable=["batch_stats"],
        )
        return ranking.triplet_hardest(sims, margin=0.2), (sims, stats["batch_stats"])

    (value, (sims, stats)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(
        variables["params"]
    )
    yield "sims, train", difference(sims, arrays["out/train/sims"]), 1e-5
    yield "triplet", difference(value, arrays["out/train/loss_max_violation"], True), 1e-5
    after = variables_from_state_dict({**weights, **under(arrays, "out/train/bn_after/")})
    yield "running statistics", tree_difference(stats, after["batch_stats"]), 1e-5
    expected = variables_from_state_dict({**weights, **under(arrays, "grad/")})["params"]
    largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
    yield "gradients / largest", tree_difference(grads, expected) / largest, 1e-4


def tree_difference(ours, theirs) -> float:
    return max(jax.tree.leaves(jax.tree.map(difference, ours, theirs)))


def rematching_batch(arrays: dict) -> Iterator[Row]:
    weights = under(arrays, "w/")
    model = model_from_state_dict(weights, dropout=0.0)
    sims, _ = model.apply(
        variables_from_state_dict(weights),
        *inputs_of(arrays),
        train=True,
        method="global_similarity",
        mutable=["batch_stats"],
    )
    values = cost(cost_from_state_dict(under(arrays, "w_cost/")), sims)
    yield "cost", difference(values, arrays["out/cost"]), 1e-5
    result = partial_sinkhorn(
        jnp.maximum(values, MINIMUM),
        float(arrays["in/rho"]),
        epsilon=float(arrays["in/reg"]),
        mask=~jnp.eye(len(values), dtype=bool),
        mode="l2rm",
    )
    yield "plan / largest", difference(result.plan, arrays["out/Sym_KLDIV/pi"], True), 1e-4
    value = rematching.symmetric_kl(sims, result.plan, tau=float(arrays["in/tau"]))
    yield "symmetric KL", difference(value, arrays["out/Sym_KLDIV/loss"], True), 1e-5


def losses(arrays: dict) -> Iterator[Row]:
    tau, margin = float(arrays["in/tau"]), float(arrays["in/margin"])
    functions: dict[str, Callable] = {
        "triplet_warmup": lambda s, p: ranking.triplet_mean(s, margin=margin),
        "triplet_max_violation": lambda s, p: ranking.triplet_hardest(s, margin=margin),
        "triplet_eval_loss": lambda s, p: ranking.per_pair_hinge(s, margin=margin),
        "InfoNCE": lambda s, p: contrastive.info_nce(s, tau=tau),
        "RCE": lambda s, p: contrastive.robust_info_nce(s, tau=tau),
        "Soft_InfoNCE": lambda s, p: rematching.soft_info_nce(s, p, tau=tau),
        "KL": lambda s, p: rematching.kl(s, p, tau=tau),
        "sym_KL": lambda s, p: rematching.symmetric_kl(s, p, tau=tau),
        "JS": lambda s, p: rematching.jensen_shannon(s, p, tau=tau),
    }
    cases = {key.split("/")[0] for key in arrays if key.endswith("/RCE")}
    value_error = gradient_error = 0.0
    for name, function in functions.items():
        for case in cases:
            found = under(arrays, f"{case}/")
            sims, plan = found["sims"], found["soft_labels"]
            grad = jax.grad(lambda s, f=function, p=plan: jnp.sum(f(s, p)))(sims)
            value_error = max(value_error, difference(function(sims, plan), found[name], True))
            error = difference(grad, found[f"{name}_grad_f64"], True)
            gradient_error = max(gradient_error, error)
    yield "nine losses, relative", value_error, 1e-5
    yield "their gradients / largest", gradient_error, 1e-4


def learned_cost(arrays: dict) -> Iterator[Row]:
    cases = [key.removesuffix("cost") for key in arrays if key.endswith("perturbed/cost")]
    error = max(
        difference(
            cost(cost_from_state_dict(under(arrays, case)), arrays[f"{case.split('/')[0]}/sims"]),
            arrays[f"{case}cost"],
        )
        for case in cases
    )
    yield "cost", error, 1e-5


def transport(arrays: dict) -> Iterator[Row]:
    error, unequal = 0.0, 0
    for key in arrays:
        if not key.endswith("/pi") or "second_opinion" in key or "/reg" not in key:
            continue
        kind, setting, _ = key.split("/")
        reg, rho, mask = (float(part.lstrip("aeghkmors")) for part in setting.split("_"))
        values = arrays[f"{kind}/cost"]
        result = partial_sinkhorn(
            jnp.maximum(values, MINIMUM),
            rho,
            epsilon=reg,
            mask=~jnp.eye(*values.shape, dtype=bool) if mask else None,
            mode="l2rm",
        )
        error = max(error, difference(result.plan, arrays[key], True))
        info = arrays.get(f"{kind}/{setting}/info")
        expected = arrays[f"{kind}/{setting}/n_iter"] if info is None else info[0]
        unequal += int(result.iterations) != int(expected)
    yield "plans / largest, mode l2rm", error, 1e-4
    yield "unequal iteration counts", float(unequal), 0.0


def metrics(arrays: dict) -> Iterator[Row]:
    error = 0.0
    for name, per_image in (("per1", 1), ("per5", 5)):
        row = recall.recalls(arrays[f"{name}/sims"], per_image)
        for way in ("i2t", "t2i"):
            ours = [row[f"{way}_{key}"] for key in ("r1", "r5", "r10", "median", "mean")]
            error = max(error, difference(ours, arrays[f"{name}/{way}"]))
    yield "recalls, median, mean rank", error, 1e-9


def beta_mixture(arrays: dict) -> Iterator[Row]:
    worst = -1.0
    for key in arrays:
        if key.endswith("/losses"):
            case = key.removesuffix("/losses")
            found = mixture.fit(arrays[key])
            called = found.mismatch(arrays[key]) <= 0.5
            accuracy = np.mean(called == (arrays[f"{case}/clean"] == 1))
            worst = max(worst, float(arrays[f"{case}/own/accuracy_arazo10"]) - accuracy)
    yield "accuracy below the stored one", max(worst, 0.0), 5e-3


def evaluation(arrays: dict) -> Iterator[Row]:
    for name in ("SGR", "SAF"):
        weights = under(arrays, f"w_{name}/")
        model = model_from_state_dict(weights)
        sims = model.apply(variables_from_state_dict(weights), *inputs_of(arrays))
        yield f"sims, {name}", difference(sims, arrays[f"out/{name}/sims"]), 1e-5


def training(arrays: dict) -> Iterator[Row]:
    weights, opt = under(arrays, "w0/"), under(arrays, "opt/")
    size = len(arrays["in/0/clean_lengths"])
    config = defaults.default()
    config.train.batch_size, config.train.warmup_epochs = size, 0
    config.l2rm.solver = "l2rm"
    config.l2rm.rho, config.l2rm.epsilon = float(opt["rho"]), float(opt["reg"])
    config.loss.tau, config.loss.margin = float(opt["tau"]), float(opt["margin"])
    config.optim.learning_rate = float(opt["lr"])
    config.optim.grad_clip = float(opt["grad_clip"])
    config.l2rm.cost_learning_rate = float(opt["lr_cost"])
    method = make_method(model_from_state_dict(weights, dropout=0.0), config)
    most = max(1, size // 10)
    step, index, error = jax.jit(method.step), np.arange(size, dtype=np.int32), 0.0

    def batch(iteration: int, kind: str) -> Batch:
        part = under(arrays, f"in/{iteration}/{kind}_")
        regions = np.full(size, part["images"].shape[1], np.int32)
        return Batch(part["images"], regions, part["captions"], part["lengths"], index, index)

    state = method.init(jax.random.key(0), batch(0, "clean"))
    state = state.replace(**jax.tree.map(jnp.asarray, variables_from_state_dict(weights)))
    for iteration, expected in enumerate(arrays["out/loss_per_iteration"]):
        drawn = arrays[f"in/{iteration}/select_index"]
        used = jnp.asarray(np.arange(most) < len(drawn), jnp.float32)
        reserved = Reserved(jnp.asarray(np.resize(drawn, most)), used)
        pair = {"matched": batch(iteration, "clean"), "mismatched": batch(iteration, "noisy")}
        state, found = step(state, pair, reserved)
        error = max(error, difference(found["loss"], expected, True))
    yield "loss of 3 whole iterations", error, 1e-5
    expected = cost_from_state_dict(under(arrays, "w_cost_after/"))
    yield "learned cost after them", tree_difference(state.own["cost"], expected), 1e-7


FILES: dict[str, Callable[[dict], Iterator[Row]]] = {
    "a_encoders": encoders,
    "bc_sim_SGR": similarity,
    "bc_sim_SAF": similarity,
    "c2_noisy_SGR": rematching_batch,
    "c2_noisy_SAF": rematching_batch,
    "d_losses": losses,
    "e_cost": learned_cost,
    "f_partial_ot_8": transport,
    "f_partial_ot_32": transport,
    "f_partial_ot_128": transport,
    "j_metrics": metrics,
    "k_bmm": beta_mixture,
    "l_eval": evaluation,
    "m_train_SGR": training,
    "m_train_SAF": training,
}


def main() -> None:
    print("| file | quantity | largest error | tolerance |\n|---|---|---|---|")
    outside = 0
    for name, rows_of in FILES.items():
        for quantity, error, tolerance in rows_of(dict(np.load(GOLDEN / f"{name}.npz"))):
            mark = "" if error <= tolerance else " (!)"
            outside += bool(mark)
            print(f"| {name} | {quantity} | {error:.1e}{mark} | {tolerance:.0e} |", flush=True)
    if outside:
        sys.exit(f"{outside} quantities are outside their tolerance")


if __name__ == "__main__":
    main()
