"""Parts of a training step: its loss, random keys, learning rate, and a target without gradient.

Most tests need no network: a matrix of similarities stands for the batch.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError
from l2rm_jax.losses import contrastive, ranking
from l2rm_jax.losses.complementary import complementary_contrastive, draw_negatives
from l2rm_jax.methods import base, baseline, l2rm, make_method, rcl
from l2rm_jax.methods.base import step_key
from l2rm_jax.methods.cost import init_cost
from l2rm_jax.models import chunks
from tests.grid import MAIN, WARMUP, batches, make_cell, tiny_config

SIZE = 6
SIMS = jnp.asarray(np.random.default_rng(0).uniform(0, 1, (SIZE, SIZE)), jnp.float32)
MODEL = SimpleNamespace(axis_name=None, clone=lambda sparse_gradient: MODEL)


def small_config(method="l2rm", **fields):
    config = defaults.default()
    config.method, config.train.warmup_epochs = method, 2
    config.l2rm.update(fields)
    return config


@pytest.mark.parametrize(
    ("config", "stream", "loss", "setting"),
    [
        (small_config(), "warmup", contrastive.robust_info_nce, {"tau": 0.05}),
        (small_config(warmup_loss="infonce"), "warmup", contrastive.info_nce, {"tau": 0.05}),
        (small_config(warmup_loss="triplet"), "warmup", ranking.triplet_mean, {"margin": 0.2}),
        (small_config("triplet"), "warmup", ranking.triplet_mean, {"margin": 0.2}),
        (small_config("triplet"), "pairs", ranking.triplet_hardest, {"margin": 0.2}),
        (small_config("infonce"), "warmup", contrastive.info_nce, {"tau": 0.05}),
        (small_config("infonce"), "pairs", contrastive.info_nce, {"tau": 0.05}),
    ],
)
def test_methods_use_their_loss_for_trusted_pairs(monkeypatch, config, stream, loss, setting):
    def plain_step(model, loss, optimiser, state, sims):
        return state, {"loss": loss(sims)}

    for module in (base, baseline):
        monkeypatch.setattr(module, "plain_step", plain_step)
    _, metrics = make_method(MODEL, config).step(None, {stream: SIMS})
    assert float(metrics["loss"]) == pytest.approx(float(loss(SIMS, **setting)))


@pytest.mark.parametrize(
    ("method", "epoch", "times"),
    [
        ("l2rm", WARMUP, 0),
        ("l2rm", MAIN, 1),
        ("triplet", WARMUP, 0),
        ("triplet", MAIN, 1),
        ("infonce", MAIN, 0),
        ("rcl", MAIN, 0),
        ("rcsl", WARMUP, 1),
        ("rcsl", MAIN, 0),
        ("rcsl_nc", WARMUP, 0),
    ],
)
def test_losses_with_hardest_negatives_use_the_sparse_gradient(monkeypatch, method, epoch, times):
    """Count the similarity matrices of a step whose gradient goes through few pairs."""
    used, with_sparse_gradient = [], chunks._with_sparse_gradient
    monkeypatch.setattr(
        chunks,
        "_with_sparse_gradient",
        lambda *args: used.append(args) or with_sparse_gradient(*args),
    )
    cell = make_cell(tiny_config(method, "cam"))
    jax.eval_shape(cell.method.step, cell.state, next(batches(cell, epoch)))
    assert len(used) == times


@pytest.mark.parametrize("method", ["triplet", "infonce"])
def test_baselines_train_on_the_known_pairs_alone(method):
    paired = np.array([False, True, True, False, True, False])
    plan = make_method(MODEL, small_config(method)).plan
    for epoch in (0, 2):
        [rows] = plan(None, SimpleNamespace(paired=paired), epoch).streams.values()
        assert rows.tolist() == [1, 2, 4]


@pytest.mark.parametrize("step", [0, 7])
@pytest.mark.parametrize("negatives", [0, 2])
def test_rcl_draws_its_negatives(monkeypatch, negatives, step):
    config = small_config("rcl")
    config.rcl.update({"loss": "gce", "q": 0.5, "negatives": negatives})
    monkeypatch.setattr(rcl, "plain_step", lambda model, loss, optimiser, state, sims: loss(sims))
    state = SimpleNamespace(key=jax.random.key(3), step=jnp.int32(step))
    drawn = draw_negatives(step_key(state, base.NEGATIVES), SIZE, 2) if negatives else None
    expected = complementary_contrastive(SIMS, tau=0.05, bound="gce", q=0.5, negatives=drawn)
    method = make_method(MODEL, config)
    assert float(method.step(state, {"pairs": SIMS})) == pytest.approx(float(expected))
    for epoch in (0, 5):  # all pairs, in the warm-up too
        assert method.plan(None, range(SIZE), epoch).streams["pairs"].tolist() == list(range(SIZE))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("loss", "abs", "rcl.loss: found 'abs', expected one of mae, log, exp, gce, tan"),
        ("q", 0.0, "rcl.q: found 0.0"),
        ("q", 1.5, "rcl.q: found 1.5"),
        ("negatives", -1, "rcl.negatives: found -1"),
        ("negatives", 128, "rcl.negatives: found 128"),
    ],
)
def test_rcl_settings_out_of_range_are_errors(field, value, message):
    config = small_config("rcl")
    config.rcl[field] = value
    with pytest.raises(ConfigError, match=message):
        make_method(MODEL, config)


@pytest.mark.parametrize(("method", "after"), [("l2rm", "matched"), ("triplet", "pairs")])
def test_streams_change_after_the_warm_up(monkeypatch, method, after):
    """L2RM also splits the pairs by their mean hinge in eval mode."""
    monkeypatch.setattr(base, "evaluate", lambda model, state, sims: sims)
    trusted = np.ones(SIZE, bool)
    pairs = {"matched": trusted, "paired": trusted, "__len__": lambda self: SIZE}
    dataset = type("Pairs", (), pairs)()
    scored = []

    def score_pairs(score):
        scored.append(np.asarray(score(None, SIMS)))
        return scored[-1]

    plan = make_method(MODEL, small_config(method)).plan
    for epoch in range(4):
        streams = plan(score_pairs, dataset, epoch).streams
        assert ("warmup" if epoch < 2 else after) in streams
        np.testing.assert_array_equal(np.sort(np.concatenate([*streams.values()])), range(SIZE))
    if method == "l2rm":
        np.testing.assert_allclose(scored[0], ranking.per_pair_hinge(SIMS, margin=0.2))


def rematch(sims, **fields):
    """Plan and report of L2RM's transport with the initial learned cost."""
    settings = small_config(**fields).l2rm
    state = SimpleNamespace(own={"cost": init_cost(sims.shape[1])})
    rows = jnp.arange(len(sims))
    batch = SimpleNamespace(image_index=rows, pair_index=rows[: sims.shape[1]])
    compiled = jax.jit(lambda x: l2rm.rematch(MODEL, settings, state, None, None, batch, x, None))
    return compiled(sims)


@pytest.mark.slow
def test_transport_plan_has_no_gradient():
    gradient = jax.grad(lambda sims: rematch(sims, epsilon=0.1)[0].sum())(SIMS)
    assert not gradient.any()


@pytest.mark.slow
def test_images_of_a_queue_keep_the_weight_of_the_batch():
    """With twice as many images as captions, the better half can take all captions."""
    good = jnp.concatenate([jnp.zeros((SIZE, SIZE)), jnp.ones((SIZE, SIZE))])
    plan, _ = rematch(good, rho=1.0, epsilon=0.05)
    np.testing.assert_allclose(plan.sum(1)[SIZE:], 1 / SIZE, rtol=1e-3)
    np.testing.assert_allclose(plan.sum(0), 1 / SIZE, rtol=1e-3)


@pytest.mark.parametrize(
    ("captions", "share"), [(64, 0.05), (128, 0.1), (256, 0.19), (512, 0.34), (1024, 0.57)]
)
def test_transported_share_grows_with_the_batch(captions, share):
    assert round(l2rm.share_of_batch(captions), 2) == share


def test_rho_of_zero_means_the_share_that_grows_with_the_batch():
    _, report = rematch(SIMS, rho=0.0, epsilon=0.1)
    np.testing.assert_allclose(report["moved_mass"], l2rm.share_of_batch(SIZE), rtol=1e-4)


def test_keys_differ_between_steps_and_uses():
    keys = [
        step_key(SimpleNamespace(key=jax.random.key(seed), step=jnp.int32(step)), use)
        for seed in range(2)
        for step in range(3)
        for use in (base.DROPOUT_A, base.DROPOUT_B, base.RESERVE)
    ]
    data = np.array([jax.random.key_data(key) for key in keys])
    assert len(np.unique(data, axis=0)) == len(keys)
