"""Parts of L2RM that no golden array covers: masks, missing streams, random draws, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.devices.batch import Batch
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import make_method
from l2rm_jax.methods.cost import Reserved, cost, cost_loss, cost_statistics, draw_reserved
from l2rm_jax.methods.l2rm import _mask, rematch
from l2rm_jax.models import make_model
from tests import tiny

SIZE = 12


def small_config(**l2rm):
    config = defaults.default()
    config.model.head = "vse"  # the fastest to compile
    config.model.update(tiny.MODEL)
    config.train.batch_size = SIZE
    config.l2rm.update(l2rm)
    return config


def random_batch(seed: int) -> Batch:
    """Random pairs; feature rows after an image's last region are NaN, so that a read shows."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(SIZE, 4, 5)).astype(np.float32)
    regions = rng.integers(1, 5, SIZE).astype(np.int32)
    images[np.arange(4) >= regions[:, None]] = np.nan
    return Batch(
        images=images,
        regions=regions,
        tokens=rng.integers(4, 20, (SIZE, 5)).astype(np.int32),
        lengths=rng.integers(1, 6, SIZE).astype(np.int32),
        pair_index=np.arange(SIZE, dtype=np.int32),
        image_index=rng.integers(0, 5, SIZE).astype(np.int32),
    )


@pytest.mark.parametrize("queue", [SIZE, 2 * SIZE])
def test_masks_forbid_the_same_pair_or_the_same_image(queue):
    index = np.random.default_rng(0).integers(0, 5, queue)
    rows = jnp.asarray(index), jnp.arange(SIZE), None
    diagonal, same_image = _mask("diagonal", *rows), _mask("same_image", *rows)
    assert _mask("none", *rows) is None
    for i in range(queue):
        for j in range(SIZE):
            assert diagonal[i, j] == (i != j)
            assert same_image[i, j] == (index[i] != index[j])


@pytest.mark.slow
@pytest.mark.parametrize("queue", [SIZE, 2 * SIZE])
def test_no_mass_goes_to_copies_of_a_pair(queue):
    """Copies of three pairs fill the batch and the queue; each pair has the lowest cost itself."""
    pairs = np.arange(queue) % 3
    allowed = _mask("diagonal", 7 + jnp.asarray(pairs), jnp.asarray(pairs[:SIZE]), None)
    np.testing.assert_array_equal(allowed, pairs[:, None] != pairs[:SIZE])
    batch = random_batch(0)
    rows = np.resize(np.arange(3), SIZE)
    copies = jax.tree.map(lambda x: x[rows], batch)._replace(pair_index=rows, image_index=rows)
    config = small_config(rho=0.5)
    model = make_model(config, 20)
    state = make_method(model, config).init(jax.random.key(0), batch)
    sims = 0.5 * jnp.asarray(rows[:, None] == rows, jnp.float32)
    plan, report = rematch(model, config.l2rm, state, None, None, copies, sims, jax.random.key(1))
    assert float(report["moved_mass"]) == pytest.approx(0.5, rel=1e-4)
    assert np.all(plan[rows[:, None] == rows] == 0) and np.all(plan[rows[:, None] != rows] > 0)


@pytest.mark.slow
@pytest.mark.parametrize("streams", [["matched"], ["mismatched"]])
def test_a_missing_stream_is_skipped(streams):
    config = small_config()
    method = make_method(make_model(config, 20), config)
    batch = {name: random_batch(seed) for seed, name in enumerate(streams)}
    state = method.init(jax.random.key(0), random_batch(0))
    after, metrics = jax.jit(method.step)(state, batch)
    parts = {"matched": "loss_matched", "mismatched": "loss_rematch"}
    assert {name for name in parts.values() if name in metrics} == {parts[s] for s in streams}
    total = sum(float(metrics[parts[name]]) for name in streams)
    assert float(metrics["loss"]) == pytest.approx(total, rel=1e-6)
    learned = np.abs(after.own["cost"]["kernel"] - state.own["cost"]["kernel"]).max()
    assert (learned > 0) == ("matched" in streams)
    assert int(after.step) == 1


@pytest.mark.parametrize("size", [1, 7, 20, 128])
def test_reserved_pairs_are_one_to_a_tenth_of_the_batch(size):
    counts = set()
    for seed in range(60):
        reserved = draw_reserved(jax.random.key(seed), size)
        count = int(reserved.used.sum())
        assert 1 <= count <= max(1, size // 10)
        assert len(set(reserved.index.tolist())) == len(reserved.index)
        assert max(reserved.index.tolist()) < size
        np.testing.assert_array_equal(reserved.used[:count], 1.0)
        counts.add(count)
    assert counts == set(range(1, max(1, size // 10) + 1))


def test_reserved_rows_give_the_gradient_of_the_reconstructed_batch():
    """`<pi_sup, cost>` over a whole reconstructed batch equals the loss of the reserved rows."""
    rng = np.random.default_rng(4)
    size = 20
    params = {
        "kernel": jnp.asarray(rng.normal(size=(size, size)), jnp.float32),
        "bias": jnp.ones(size),
    }
    reserved = Reserved(jnp.asarray([7, 3]), jnp.asarray([1.0, 0.0]))
    rows = rng.permutation(size)[: len(reserved.index)]  # positions of the reserved images
    sims = rng.random((size, size)).astype(np.float32)
    supervision = np.zeros((size, size), np.float32)
    supervision[rows, reserved.index] = reserved.used
    whole = jax.grad(lambda p: jnp.sum(supervision * cost(p, sims)))(params)
    ours = jax.grad(cost_loss)(params, sims[rows], reserved)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), ours, whole)


def test_statistics_show_a_collapsed_cost():
    rng = np.random.default_rng(5)
    alive = cost_statistics(jnp.asarray(rng.random((6, 6))))
    dead = cost_statistics(jnp.full((6, 6), 1e-10))
    assert alive["cost_spread"] > 0.2 and alive["cost_zero"] == 0
    assert dead["cost_spread"] == 0 and dead["cost_zero"] == 1


@pytest.mark.parametrize("field", ["warmup_loss", "rematch_loss", "cost", "mask", "solver"])
def test_an_unknown_name_is_refused(field):
    config = small_config(**{field: "none such"})
    with pytest.raises(ConfigError, match=f"l2rm.{field}: .*none such"):
        make_method(make_model(config, 20), config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("warmup_loss", "rematch_loss", "cost_name"),
    [("infonce", "infonce", "cosine"), ("triplet", "js", "learned")],
)
def test_every_ablation_takes_a_finite_step(warmup_loss, rematch_loss, cost_name):
    config = small_config(
        warmup_loss=warmup_loss, rematch_loss=rematch_loss, cost=cost_name, rho=1.0
    )
    method = make_method(make_model(config, 20), config)
    state = method.init(jax.random.key(0), random_batch(0))
    step = jax.jit(method.step)
    state, warm = step(state, {"warmup": random_batch(1)})
    state, main = step(state, {"matched": random_batch(2), "mismatched": random_batch(3)})
    for metrics in (warm, main):
        assert all(np.isfinite(value) for value in metrics.values())
    assert float(main["moved_mass"]) == pytest.approx(1.0, rel=1e-4)
