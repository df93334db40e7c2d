"""Methods that fine-tune a CLIP: OSA's weights and steps, NCU's losses and transport."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from l2rm_jax.losses import unlearning
from l2rm_jax.losses.contrastive import info_nce, sigmoid_contrastive
from l2rm_jax.losses.weights import osa, osa_code
from l2rm_jax.models.layers import l2_normalise
from l2rm_jax.ot import partial_sinkhorn
from tests.golden.fidelity.arrays import Arrays, difference, largest_entry, tree_difference

COSINE = 100  # their logits are cosines times this
ADAM, WEIGHT_DECAY = {"b1": 0.9, "b2": 0.98, "eps": 1e-6}, 0.2  # OSA's
EPSILON, MOST, STOP = 0.03, 100, 1e-4  # NCU's transport


def osa_file(arrays: Arrays) -> None:
    @jax.jit
    def evaluate(target, estimator, threshold):
        scores = jnp.diagonal(estimator)
        weights = osa_code(scores, threshold)

        def loss(target):
            return info_nce(target, tau=1.0, weights=weights) / 2

        paper = osa(scores / COSINE, threshold / COSINE)
        return weights, paper, *jax.value_and_grad(loss)(target)

    for case in arrays.cases("in/logits_target"):
        stored = arrays.under(f"{case}/")
        inputs = (stored[f"in/{name}"] for name in ("logits_target", "logits_estimator"))
        weights, paper, loss, gradient = evaluate(*inputs, stored["in/threshold"])
        stored.check("weights of the paper", paper, "derived/weight_of_the_paper")
        if case == "none_above":  # theirs divides 0 by 0
            undefined = np.isnan(stored["weight_of_images"]) & np.isnan(stored["weight_of_texts"])
            stored.add("weights", float(np.abs(weights).max()) + (not undefined.all()))
            unknown = [np.isnan(stored[name]).all() for name in ("loss", "loss_f64", "grad_target")]
            stored.add("losses, relative", abs(float(loss)) + (not all(unknown)))
            continue
        for name in ("weight_of_images", "weight_of_texts"):
            stored.check("weights", weights, stored[name])
        stored.check("losses, relative", loss, "loss")
        stored.check("gradients / largest", gradient, "grad_target")
    _osa_steps(arrays.under("step/"))


def _osa_steps(step: Arrays) -> None:
    """Two epochs of three batches by their model: two linear maps to unit vectors."""

    def logits(w, images, texts):
        image, text = (
            l2_normalise(x @ w[f"{side}.weight"].T + w[f"{side}.bias"][None])
            for side, x in (("image", images), ("text", texts))
        )
        return jnp.exp(w["logit_scale"]) * image @ text.T

    first = {name: jnp.asarray(x) for name, x in step.under("w0/").items()}
    random = step["in/random_images"], step["in/random_texts"]
    threshold = jnp.mean(logits(first, *random))
    step.check("thresholds, relative", threshold, "threshold")

    def loss_of(w, images, texts):
        estimated = logits(first, images, texts)
        weights = osa_code(jnp.diagonal(estimated), threshold)
        return info_nce(logits(w, images, texts), tau=1.0, weights=weights) / 2, (
            estimated, weights,
        )  # fmt: skip

    compute = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    optimiser = optax.chain(optax.scale_by_adam(**ADAM), optax.add_decayed_weights(WEIGHT_DECAY))
    w, state = first, optimiser.init(first)
    for n in range(6):
        stored, batch = step.under(f"{n}/"), step.under(f"in/{n % 3}/")
        (loss, (estimated, weights)), gradient = compute(w, batch["images"], batch["texts"])
        stored.check("logits of the estimator, relative", estimated, "logits_estimator")
        stored.check("weights", weights, "weight")
        stored.check("losses of the steps, relative", loss, "loss")
        if n == 0:
            theirs = dict(step.under("grad_first/"))
            error = tree_difference(gradient, theirs, relative=True)
            step.add("first gradients / largest", error)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to whole numbers
            updates, state = optimiser.update(gradient, state, w)
        w = jax.tree.map(lambda x, update, rate=stored["lr"]: x - rate * update, w, updates)
    after = dict(step.under("w_after/"))
    step.add("weights after / largest", tree_difference(w, after) / largest_entry(after))


def ncu(arrays: Arrays) -> None:
    def plan(cost, mask, epsilon=EPSILON, **settings):
        return partial_sinkhorn(cost, 1.0, epsilon=epsilon, mask=mask, **settings).plan

    def their_plan(cost, mask, iterations, epsilon=EPSILON):
        start = jnp.zeros(cost.shape[1])
        settings = {"mode": "fixed", "max_iterations": iterations, "start": start}
        return plan(cost, mask, epsilon, **settings)

    for case in arrays.under("sinkhorn/").cases("in/cost"):
        stored = arrays.under(f"sinkhorn/{case}/")
        problem = stored["in/cost"], stored["in/allowed"] == 1
        for name, ours in (
            ("plan_to_the_end", plan(*problem)),
            ("plan", their_plan(*problem, _their_stop(*problem, EPSILON))),
            ("plan_reg0_1", their_plan(*problem, _their_stop(*problem, 0.1), 0.1)),
            ("plan_1_iteration", their_plan(*problem, 1)),
        ):
            kind = "converged" if name == "plan_to_the_end" else "their iterations"
            stored.check(f"plans, {kind} / largest", ours, name)
    for case in arrays.cases("in/images"):
        log_scale = jnp.asarray(arrays["in/log_scale"])
        _ncu_case(arrays.under(f"{case}/"), log_scale, plan, their_plan)


def _their_stop(cost, mask, epsilon: float) -> int:
    """Count their iterations, until the row potentials (in units of the cost) hardly move."""
    kernel = np.where(mask, np.exp(-np.float64(cost) / epsilon), 0.0)
    u, v = (np.ones(size) for size in cost.shape)
    for n in range(1, MOST):
        before, u = u, 1 / len(u) / (kernel @ v)
        v = 1 / len(v) / (u @ kernel)
        if epsilon * np.abs(np.log(u / before)).sum() < STOP:
            return n
    return MOST


def _ncu_case(stored: Arrays, log_scale, plan, their_plan) -> None:
    vectors = [jnp.asarray(stored[f"in/{name}"]) for name in ("images", "texts", "negatives")]
    sims = unlearning.candidate_similarities(*vectors)
    logits = jnp.exp(log_scale) * sims[:, :-1]
    stored.check("losses, relative", info_nce(logits, tau=1.0) / 2, "clip_loss")
    for name in dict.fromkeys(key.split("/")[0] for key in stored if key.startswith("ratio")):
        part, share = stored.under(f"{name}/"), float(name.removeprefix("ratio"))
        forgotten = unlearning.forgotten(logits, int(share * len(sims)))
        probabilities = jnp.diagonal(jax.nn.softmax(logits, axis=1))
        part.check("predictions", probabilities, "predictions")
        part.add(
            "pairs forgotten otherwise",
            len(np.setxor1d(np.flatnonzero(forgotten), part["forgotten"])),
        )
        cost, mask = unlearning.transport_cost(sims), unlearning.allowed(forgotten)
        plans = {}
        for side, number, c, m in (
            ("images", 0, cost, mask),
            ("texts", 1, unlearning.transport_cost(sims.T), mask.T),
        ):
            plans[side] = part[f"plan_of_{side}"]
            ours = their_plan(c, m, int(part["iterations"][number]))
            part.check("plans, their iterations / largest", ours, plans[side])
            _check_converged(part, plan(c, m))
        hard = unlearning.stored_targets(forgotten)
        for key in dict.fromkeys(
            k.split("/")[0] for k in stored if k.startswith(f"unlearn_{name}_")
        ):
            gamma = float(key.split("gamma")[1])
            _ncu_losses(stored.under(f"{key}/"), vectors, log_scale, plans, hard, gamma)
        kept = np.flatnonzero(~np.asarray(forgotten))
        _ncu_negatives(stored.under(f"negatives_{name}/"), vectors, log_scale, kept)


def _check_converged(part: Arrays, plan) -> None:
    """The plan of the solver to the end has the marginals that theirs misses."""
    rows, columns = plan.shape
    part.add("marginals, converged, relative", difference(plan.sum(1) * rows, np.ones(rows)))
    part.add("marginals, converged, relative", difference(plan.sum(0) * columns, np.ones(columns)))


def _ncu_losses(stored: Arrays, vectors, log_scale, plans, hard, gamma) -> None:
    of_images = unlearning.targets(plans["images"], hard, share=gamma)
    of_texts = unlearning.targets(plans["texts"], hard.T, share=gamma)
    stored.check("targets", of_images, "target_of_images")
    stored.check("targets", of_texts, "target_of_texts")

    @jax.jit
    def losses(images, texts, negatives, log_scale):
        logits = jnp.exp(log_scale) * unlearning.candidate_similarities(images, texts, negatives)
        both = (
            unlearning.transport_loss(logits, of_images),
            unlearning.transport_loss(logits.T, of_texts),
        )
        return sum(both) / 2, unlearning.opposite_loss(texts, negatives)

    inputs = (*vectors, log_scale)
    for name, value in zip(("loss", "opposite_loss"), losses(*inputs), strict=True):
        stored.check("losses, relative", value, name)
    _check_gradients(stored, lambda *x: sum(losses(*x)), inputs)


def _ncu_negatives(stored: Arrays, vectors, log_scale, kept) -> None:
    @jax.jit
    def losses(images, texts, negatives, log_scale):
        v, t, n = (x[kept] for x in (images, texts, negatives))
        scale = jnp.exp(log_scale)
        return {
            "cyclic_loss": unlearning.EMPHASIS * unlearning.cyclic_loss(t, n),
            "opposite_loss": unlearning.EMPHASIS * unlearning.opposite_loss(t, n),
            "sigmoid_loss": sigmoid_contrastive(v @ t.T, scale=scale, bias=jnp.zeros(())),
            "negative_sigmoid_loss": unlearning.negatives_sigmoid(v @ n.T, scale=scale),
        }

    inputs = (*vectors, log_scale)
    values = losses(*inputs)
    for name, value in {**values, "loss": sum(values.values())}.items():
        stored.check("losses, relative", value, name)
    _check_gradients(stored, lambda *x: sum(losses(*x).values()), inputs)


def _check_gradients(stored: Arrays, loss, inputs) -> None:
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*inputs)
    for name, ours in zip(("images", "texts", "negatives", "log_scale"), gradients, strict=True):
        stored.check("gradients / largest", ours, f"grad_{name}")
