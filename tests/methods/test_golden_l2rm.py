"""L2RM against the reference: one rematching loss with its gradients, the learned cost, and whole
training iterations with the reference's batches and draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.data.batches import Batch
from l2rm_jax.losses import contrastive, rematching
from l2rm_jax.methods import make_method
from l2rm_jax.methods.base import Optimiser
from l2rm_jax.methods.cost import MINIMUM, Reserved, cost, cost_loss, init_cost
from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.torch_import import (
    cost_from_state_dict,
    model_from_state_dict,
    variables_from_state_dict,
)

HEADS = ["sgr", "saf"]
# Gradients that are zero by construction: Adam turns their rounding noise into steps of +-lr.
NOISY = (
    "embedding_common.0.bias",
    "graph_key_w.bias",
    "attn_sim_w.bias",
    "v_global_w.embedding_global.0.bias",
)


@pytest.mark.parametrize("head", HEADS)
def test_rematching_a_batch(golden, head):
    arrays = golden(f"c2_noisy_{head.upper()}")
    weights = arrays.under("w/")
    model, variables = (
        model_from_state_dict(weights, dropout=0.0),
        variables_from_state_dict(weights),
    )
    cost_params = cost_from_state_dict(arrays.under("w_cost/"))
    inputs = [arrays[f"in/{name}"] for name in ("images", "captions", "lengths")]
    tau = float(arrays["in/tau"])

    def sims_of(params):
        variables_ = {**variables, "params": params}
        return model.apply(
            variables_, *inputs, train=True, method="global_similarity", mutable=["batch_stats"]
        )[0]

    sims = jax.jit(sims_of)(variables["params"])
    values = cost(cost_params, sims)
    np.testing.assert_allclose(values, arrays["out/cost"], rtol=0, atol=1e-5)
    result = partial_sinkhorn(
        jnp.maximum(values, MINIMUM),
        float(arrays["in/rho"]),
        epsilon=float(arrays["in/reg"]),
        mask=~jnp.eye(len(values), dtype=bool),
        mode="l2rm",
    )
    assert int(result.iterations) == int(arrays["out/sinkhorn_iterations"])
    plan = arrays["out/Sym_KLDIV/pi"]
    np.testing.assert_allclose(result.plan, plan, rtol=0, atol=1e-4 * plan.max())
    losses = {
        "Sym_KLDIV": rematching.symmetric_kl,
        "KLDIV": rematching.kl,
        "Soft_InfoNCE": rematching.soft_info_nce,
    }
    for name, loss in losses.items():
        value = loss(sims, result.plan, tau=tau)
        np.testing.assert_allclose(value, arrays[f"out/{name}/loss"], rtol=2e-5)
    np.testing.assert_allclose(
        contrastive.info_nce(sims, tau=tau), arrays["out/InfoNCE/loss"], rtol=1e-5
    )
    np.testing.assert_allclose(
        contrastive.robust_info_nce(sims, tau=tau), arrays["out/RCE/loss"], rtol=1e-5
    )
    gradient = jax.jit(
        jax.grad(lambda p: rematching.symmetric_kl(sims_of(p), result.plan, tau=tau))
    )(variables["params"])
    expected = {**weights, **arrays.under("grad/Sym_KLDIV/")}
    expected = variables_from_state_dict(expected)["params"]
    largest = max(np.abs(x).max() for x in jax.tree.leaves(expected))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * largest),
        gradient,
        expected,
    )


@pytest.mark.parametrize("size", [8, 16])
def test_learned_cost(golden, size):
    arrays = golden("e_cost")
    assert_trees(init_cost(size), cost_from_state_dict(arrays.under(f"{size}/init/")), 0)
    sims, supervision = arrays[f"{size}/sims"], arrays[f"{size}/supervision"]
    rows, columns = np.nonzero(supervision)
    reserved = Reserved(jnp.asarray(columns), jnp.ones(len(columns)))
    optimiser = Optimiser(2e-6, decay_epochs=10, warmup_epochs=0)
    params = init_cost(size)
    opt_state = optimiser.init(params)
    for step in range(3):
        prefix = f"{size}/step{step}/"
        np.testing.assert_allclose(cost(params, sims), arrays[f"{prefix}cost"], atol=1e-6)
        # Only the reserved rows are scored, and the gradient is that of the whole matrix.
        loss, grads = jax.value_and_grad(cost_loss)(params, sims[rows], reserved)
        np.testing.assert_allclose(loss, arrays[f"{prefix}loss"], rtol=1e-5)
        assert_trees(grads, cost_from_state_dict(arrays.under(f"{prefix}grad/")), 1e-6)
        params, opt_state = optimiser.update(grads, opt_state, params, jnp.zeros((), jnp.int32))
        assert_trees(params, cost_from_state_dict(arrays.under(f"{prefix}after/")), 1e-8)


def test_learned_cost_with_dead_units(golden):
    arrays = golden("e_cost")
    for size in (8, 16):
        prefix = f"{size}/perturbed/"
        params = cost_from_state_dict(arrays.under(prefix))
        sims = arrays[f"{size}/sims"]
        rows, columns = np.nonzero(arrays[f"{size}/supervision"])
        reserved = Reserved(jnp.asarray(columns), jnp.ones(len(columns)))
        np.testing.assert_allclose(cost(params, sims), arrays[f"{prefix}cost"], atol=1e-5)
        loss, grads = jax.value_and_grad(cost_loss)(params, sims[rows], reserved)
        np.testing.assert_allclose(loss, arrays[f"{prefix}loss"], rtol=1e-5)
        assert_trees(grads, cost_from_state_dict(arrays.under(f"{prefix}grad/")), 1e-6)


def assert_trees(ours, theirs, atol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=atol), ours, theirs)


@pytest.mark.parametrize("head", HEADS)
def test_whole_training_iterations(golden, head):
    arrays = golden(f"m_train_{head.upper()}")
    weights = arrays.under("w0/")
    opt = arrays.under("opt/")
    iterations = len(arrays["out/loss_per_iteration"])
    size = len(arrays["in/0/clean_lengths"])
    config = defaults.default()
    config.train.batch_size = size
    config.train.warmup_epochs = 0
    config.l2rm.solver = "l2rm"
    config.l2rm.rho, config.l2rm.epsilon = float(opt["rho"]), float(opt["reg"])
    config.loss.tau, config.loss.margin = float(opt["tau"]), float(opt["margin"])
    config.optim.learning_rate = float(opt["lr"])
    config.optim.grad_clip = float(opt["grad_clip"])
    config.l2rm.cost_learning_rate = float(opt["lr_cost"])
    method = make_method(model_from_state_dict(weights, dropout=0.0), config)

    def batch(iteration: int, kind: str) -> Batch:
        part = arrays.under(f"in/{iteration}/{kind}_")
        index = np.arange(size, dtype=np.int32)
        regions = np.full(size, part["images"].shape[1], np.int32)
        return Batch(part["images"], regions, part["captions"], part["lengths"], index, index)

    variables = jax.tree.map(jnp.asarray, variables_from_state_dict(weights))
    state = method.init(jax.random.key(0), batch(0, "clean"))
    state = state.replace(**variables)
    step = jax.jit(method.step)
    for iteration in range(iterations):
        drawn = arrays[f"in/{iteration}/select_index"]
        most = max(1, size // 10)
        reserved = Reserved(
            jnp.asarray(np.resize(drawn, most)),
            jnp.asarray(np.arange(most) < len(drawn), jnp.float32),
        )
        pair = {"matched": batch(iteration, "clean"), "mismatched": batch(iteration, "noisy")}
        state, metrics = step(state, pair, reserved)
        expected = arrays["out/loss_per_iteration"][iteration]
        np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
        # The cost is scored in eval mode, where the noise in a bias that batch normalisation
        # removes in train mode shows through the running mean: 2e-4 after the first update.
        expected = arrays["out/cost_loss_per_iteration"][iteration]
        rtol = 1e-5 if iteration == 0 else 5e-4
        np.testing.assert_allclose(metrics["loss_cost"], expected, rtol=rtol)
        expected = arrays["out/grad_norm_before_clip"][iteration]
        np.testing.assert_allclose(metrics["grad_norm"], expected, rtol=1e-4)

    after = arrays.under("w_after/")
    tolerance = {name: np.full(np.shape(x), 2e-5) for name, x in after.items()}
    lr = float(opt["lr"])
    for name in after:
        behind = ("v_global_w.embedding_global.1.running_mean", "SAF_module.bn.running_mean")
        if name.endswith(NOISY + behind):
            tolerance[name][:] = 2 * iterations * lr
    expected = variables_from_state_dict(after)
    allowed = variables_from_state_dict(tolerance)
    ours = {"params": state.params, "batch_stats": state.batch_stats}
    jax.tree.map(
        lambda a, b, t: np.testing.assert_array_less(np.abs(a - b), t + 1e-12),
        ours,
        expected,
        allowed,
    )
    cost_after = cost_from_state_dict(arrays.under("w_cost_after/"))
    assert_trees(state.own["cost"], cost_after, 1e-7)
