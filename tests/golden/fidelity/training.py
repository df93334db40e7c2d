"""L2RM: learned cost, rematching losses with gradients, and whole training iterations."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax.losses import rematching
from l2rm_jax.methods.base import Optimiser
from l2rm_jax.methods.cost import MINIMUM, Reserved, cost, cost_loss, init_cost
from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.published.conversion import linear_from_state_dict
from tests.golden.fidelity.arrays import Arrays, tree_difference
from tests.golden.fidelity.losses import CONTRASTIVE
from tests.golden.fidelity.models import TrainMode, gradient_error
from tests.golden.fidelity.steps import Method

REMATCHING = {
    "Sym_KLDIV": rematching.symmetric_kl,
    "KLDIV": rematching.kl,
    "Soft_InfoNCE": rematching.soft_info_nce,
}


def learned_cost(arrays: Arrays) -> None:
    for size in {key.split("/")[0] for key in arrays}:
        stored = arrays.under(f"{size}/")
        params = init_cost(int(size))
        theirs = linear_from_state_dict(stored.under("init/"), "fc")
        stored.add("start", tree_difference(params, theirs))
        optimiser = Optimiser(2e-6, decay_epochs=10)
        opt_state = optimiser.init(params)
        for step in sorted(case for case in stored.cases("cost") if case.startswith("step")):
            out = stored.under(f"{step}/")
            grads = _check_cost(stored, params, out)
            params, opt_state = optimiser.update(grads, opt_state, params, jnp.zeros((), int))
            after = linear_from_state_dict(out.under("after/"), "fc")
            stored.add("parameters after each step", tree_difference(params, after))
        # Parameters far from their initial values, where some units are dead.
        perturbed = stored.under("perturbed/")
        _check_cost(stored, linear_from_state_dict(perturbed, "fc"), perturbed)


def _check_cost(stored: Arrays, params: dict, out: Arrays) -> dict:
    """Compare the cost, its loss and the gradients; return our gradients."""
    sims = stored["sims"]
    out.check("cost", cost(params, sims), "cost")
    # We score only the reserved rows, which gives the gradient of the whole matrix.
    rows, columns = np.nonzero(stored["supervision"])
    reserved = Reserved(jnp.asarray(columns), jnp.ones(len(columns)))
    loss, grads = jax.value_and_grad(cost_loss)(params, sims[rows], reserved)
    out.check("loss, relative", loss, "loss")
    out.add("gradients", tree_difference(grads, linear_from_state_dict(out.under("grad/"), "fc")))
    return grads


def rematching_batch(arrays: Arrays) -> None:
    weights, out = arrays.under("w/"), arrays.under("out/")
    rho, epsilon, tau = arrays.numbers("in/rho", "in/reg", "in/tau")
    run = TrainMode(arrays)
    out.check("similarities", run.sims, "sims_train")
    values = cost(linear_from_state_dict(arrays.under("w_cost/"), "fc"), run.sims)
    out.check("learned cost", values, "cost")
    mask = ~jnp.eye(len(values), dtype=bool)
    values = jnp.maximum(values, MINIMUM)
    result = partial_sinkhorn(values, rho, epsilon=epsilon, mask=mask, mode="l2rm")
    out.check("iterations", result.iterations, "sinkhorn_iterations")
    losses = {name: partial(f, plan=result.plan, tau=tau) for name, f in REMATCHING.items()}
    losses |= {name: partial(f, tau=tau) for name, f in CONTRASTIVE.items()}
    for name, loss in losses.items():
        out.check("losses, relative", loss(run.sims), f"{name}/loss")
        if name in REMATCHING:
            out.check("plan / largest", result.plan, f"{name}/pi")
    for name in {key.split("/")[0] for key in arrays.under("grad/")}:
        given = arrays.under(f"grad/{name}/")
        error = gradient_error(run.gradients(losses[name]), given, weights)
        given.add("gradients / largest", error)


def training(arrays: Arrays) -> None:
    opt, out = arrays.under("opt/"), arrays.under("out/")
    size, iterations = len(arrays["in/0/clean_lengths"]), len(out["loss_per_iteration"])
    rho, epsilon, cost_learning_rate = opt.numbers("rho", "reg", "lr_cost")
    fields = {
        "l2rm__solver": "l2rm",
        "l2rm__mask": "diagonal" if opt["noise_ratio"] > 0 else "none",
        "l2rm__rho": rho,
        "l2rm__epsilon": epsilon,
        "l2rm__cost_learning_rate": cost_learning_rate,
    }
    method = Method("l2rm", arrays, ("w0/",), size, **fields)
    streams = {"matched": "clean", "mismatched": "noisy"}
    batches = [
        {name: method.batch(arrays, f"in/{n}/{theirs}_") for name, theirs in streams.items()}
        for n in range(iterations)
    ]
    state = method.start(batches[0]["matched"], size)
    most, logged = max(1, size // 10), []
    for n, pair in enumerate(batches):
        drawn = arrays[f"in/{n}/select_index"]
        used = jnp.asarray(np.arange(most) < len(drawn), jnp.float32)
        reserved = Reserved(jnp.asarray(np.resize(drawn, most)), used)
        state, metrics = method.step(state, pair, reserved)
        logged.append(jax.device_get(metrics))
        if n == 0:
            given = arrays.under("grad_first_iteration_unclipped/")
            method.check_first_gradients(given, state, metrics["grad_norm"])

    losses, costs, norms = (
        np.array([each[name] for each in logged]) for name in ("loss", "loss_cost", "grad_norm")
    )
    out.check("losses, relative", losses, "loss_per_iteration")
    # The cost's similarities are in eval mode. There the noise of a bias, which batch normalisation
    # removes in train mode, shows through the running mean: 2e-4 after the first update.
    theirs = out["cost_loss_per_iteration"]
    out.check("first cost loss, relative", costs[0], theirs[0])
    out.check("later cost losses, relative", costs[1:], theirs[1:])
    out.check("gradient norms, relative", norms, "grad_norm_before_clip")
    cost_after = linear_from_state_dict(arrays.under("w_cost_after/"), "fc")
    out.add("learned cost after", tree_difference(state.own["cost"], cost_after))
    method.check_weights_after(arrays, state, iterations)
