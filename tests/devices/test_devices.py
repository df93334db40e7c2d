"""One device and several devices compute the same results."""

import itertools
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.data.batches import Batch
from l2rm_jax.devices.hosts import Share, require_shared_directory
from l2rm_jax.devices.parallel import AXIS, Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import EpochPlan, make_method
from l2rm_jax.models import make_model
from tests import grid, tiny

WARMUP = {"warmup": True}
SIZE, REGIONS, FEATURES, WORDS, VOCABULARY = 20, 5, 7, 9, 30


def small_config(head: str, **l2rm):
    config = defaults.default()
    config.model.head = head
    config.model.update(tiny.MODEL)
    config.train.batch_size = SIZE
    config.train.warmup_epochs = 0
    config.optim.learning_rate = 2e-4
    config.l2rm.update(l2rm)
    return config


def random_batch(rng: np.random.Generator, images: int = SIZE) -> Batch:
    """Pairs whose images have different numbers of regions."""
    return Batch(
        images=rng.normal(size=(images, REGIONS, FEATURES)).astype(np.float32),
        regions=rng.integers(1, REGIONS + 1, images).astype(np.int32),
        tokens=rng.integers(4, VOCABULARY, (SIZE, WORDS)).astype(np.int32),
        lengths=rng.integers(2, WORDS + 1, SIZE).astype(np.int32),
        pair_index=np.arange(SIZE, dtype=np.int32),
        image_index=rng.integers(0, SIZE // 2, images).astype(np.int32),
    )


def report(config, devices: int, streams: list[dict]) -> dict[str, np.ndarray]:
    """Values of each metric in the steps of these batches."""
    replicas = Replicas(jax.devices()[:devices])
    method = make_method(make_model(config, VOCABULARY, AXIS), config)
    first = next(iter(streams[0].values()))
    state = replicas.replicate(method.init(jax.random.key(3), first))
    step = replicas.map(method.step, donate=True)
    reports = []
    for batch in streams:
        shards = {name: replicas.shard(b) for name, b in batch.items()}
        state, metrics = step(state, shards)
        reports.append({name: float(x) for name, x in replicas.unreplicate(metrics).items()})
        for value in metrics.values():  # equal on all devices
            np.testing.assert_allclose(value, np.full_like(value, value[0]), rtol=1e-6)
    return {name: np.array([values[name] for values in reports]) for name in reports[0]}


@pytest.mark.parametrize(
    ("head", "settings"),
    [
        pytest.param("sgr", {}, marks=pytest.mark.exhaustive),
        ("saf", {"queue_length": 2 * SIZE, "mask": "same_image", "rho": 0.5}),
        ("vse", WARMUP),
    ],
)
@pytest.mark.slow
def test_steps_do_not_depend_on_the_device_count(head, settings):
    """Run twenty steps with dropout on 1 and on 4 devices."""
    warmup = settings == WARMUP
    config = small_config(head, **({} if warmup else settings))
    rng = np.random.default_rng(1)
    queue = config.l2rm.queue_length or SIZE
    if warmup:
        streams = [{"warmup": random_batch(rng)} for _ in range(20)]
    else:
        streams = [
            {"matched": random_batch(rng), "mismatched": random_batch(rng, queue)}
            for _ in range(20)
        ]
    one, four = report(config, 1, streams), report(config, 4, streams)
    # Rounding in Adam's first steps changes gradient norms and iteration counts more than losses.
    for name in one.keys() - {"transport_iterations", "grad_norm"}:
        # In eval mode, biases that train mode cancels have an effect; their values are noise.
        rtol = 1e-3 if name == "loss_cost" else 1e-4
        np.testing.assert_allclose(four[name], one[name], rtol=rtol, atol=1e-6, err_msg=name)
    # Adam hides a constant factor in the gradients; the first norm shows it, before any rounding.
    np.testing.assert_allclose(four["grad_norm"][0], one["grad_norm"][0], rtol=1e-4)
    assert len(np.unique(one["loss"])) == 20  # the parameters change


def augmented_config(head: str, method: str):
    config = small_config(head)
    config.method, config.optim.weight_decay = method, 0.1
    config.model.update(region_mask=0.4, word_noise=0.5, margins="inter")
    return config


@pytest.mark.slow
def test_augmented_steps_do_not_depend_on_the_device_count():
    rng = np.random.default_rng(2)
    streams = [{"pairs": random_batch(rng)} for _ in range(4)]
    config = augmented_config("omit", "triplet")
    one, four = report(config, 1, streams), report(config, 4, streams)
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(four[name], one[name], rtol=1e-4, err_msg=name)
    assert len(np.unique(one["loss"])) == 4 and (one["grad_norm"] > 0).all()


# Every method with every head: `pytest -m exhaustive tests/devices/test_devices.py`. In float64,
# because in float32 Adam divides some gradients that are pure rounding by their own size.


class Course(NamedTuple):
    """Metrics of each of ten steps, the state after them, and the plan of the next epoch."""

    metrics: list[dict[str, float]]
    state: Any
    plan: EpochPlan


def in_float64(tree):
    def widen(x):
        return np.asarray(x, np.float64) if x.dtype == np.float32 else x

    return jax.tree.map(widen, tree)


def course(method: str, head: str, devices: int) -> Course:
    """Train ten steps, the first two of them warm-up, with dropout."""
    config = grid.tiny_config(method, head)
    config.optim.learning_rate = 2e-4  # the published one
    cell = grid.make_cell(config)
    replicas = Replicas(jax.devices()[:devices])
    mapped = make_method(make_model(config, grid.VOCABULARY, AXIS), config)
    step = replicas.map(mapped.step)
    state = replicas.replicate(in_float64(grid.start(cell.method, jax.random.key(0), cell.sample)))
    batches = itertools.chain.from_iterable(
        grid.batches(cell, epoch) for epoch in itertools.count(grid.MAIN)
    )
    warmup = itertools.islice(grid.batches(cell, grid.WARMUP), 2)
    metrics = []
    for batch in itertools.islice(itertools.chain(warmup, batches), 10):
        shards = {name: replicas.shard(in_float64(each)) for name, each in batch.items()}
        state, values = step(state, shards)
        metrics.append({name: float(x) for name, x in replicas.unreplicate(values).items()})

    def score_pairs(score):
        mapped_score, parts, rows = replicas.map(score), [], []
        for each in grid.stream({"all": np.arange(len(grid.pairs()))}, epoch=0):
            batch = replicas.shard(in_float64(each["all"]))
            parts.append(replicas.unreplicate(mapped_score(state, batch)))
            rows.append(each["all"].pair_index)
        order = np.argsort(np.concatenate(rows))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[order], *parts)

    plan = mapped.plan(score_pairs, grid.pairs(), grid.MAIN)
    return Course(metrics, jax.device_get(replicas.unreplicate(state.replace(key=()))), plan)


def leaves(tree) -> list[tuple[str, np.ndarray]]:
    return [(jax.tree_util.keystr(path), x) for path, x in jax.tree.leaves_with_path(tree)]


def moments(state) -> tuple[Any, Any]:
    """Adam's running means of the gradients and of their squares, trees like the parameters."""
    [adam] = [part for part in jax.tree.leaves(state.opt_state, is_adam) if is_adam(part)]
    return adam.mu, adam.nu


def is_adam(part) -> bool:
    return isinstance(part, optax.ScaleByAdamState)


def check_states(found, expected) -> None:
    """Compare parameters, gradients and batch statistics.

    Parameters that do not affect the loss (a bias before a normalisation) are left out: their
    gradients are rounding, which Adam scales up to steps of normal size.
    """
    gradients, squares = moments(expected)
    largest = max(np.sqrt(x).max() for x in jax.tree.leaves(squares))
    seen = jax.tree.map(lambda square: np.sqrt(square) > 1e-9 * largest, squares)
    pairs = zip(leaves(found.params), leaves(expected.params), jax.tree.leaves(seen), strict=True)
    for (name, x), (_, y), where in pairs:
        np.testing.assert_allclose(x[where], y[where], rtol=1e-6, atol=1e-9, err_msg=name)
    assert np.mean(np.concatenate([np.ravel(x) for x in jax.tree.leaves(seen)])) > 0.3
    pairs = zip(leaves(moments(found)[0]), leaves(gradients), strict=True)
    for (name, x), (_, y) in pairs:
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9 * largest, err_msg=name)
    for (name, x), (_, y) in zip(
        leaves(found.batch_stats), leaves(expected.batch_stats), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12, err_msg=name)


def check_plans(found: EpochPlan, expected: EpochPlan) -> None:
    """Compare the split of the mixture and the pseudo-pairs."""
    assert found.report == pytest.approx(expected.report, rel=1e-6)
    assert found.streams.keys() == expected.streams.keys()
    for name, rows in expected.streams.items():
        np.testing.assert_array_equal(found.streams[name], rows, err_msg=name)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("method", "head"), grid.CELLS)
def test_ten_steps_on_one_two_four_and_eight_devices(method, head):
    assert len(jax.devices()) >= 8, "as `-m exhaustive` alone simulates them"
    jax.clear_caches()  # live programs of forty cells exhaust the memory maps of a process
    with jax.enable_x64(True):
        one = course(method, head, 1)
        assert len(one.metrics) == 10
        for devices in (2, 4, 8):
            found = course(method, head, devices)
            for at, (values, expected) in enumerate(zip(found.metrics, one.metrics, strict=True)):
                where = f"step {at + 1} on {devices} devices"
                assert values == pytest.approx(expected, rel=1e-9, abs=1e-12), where
            check_states(found.state, one.state)
            check_plans(found.plan, one.plan)


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match=r"30 pairs .* 4 devices; the nearest sizes are 28 or 32"):
        Replicas(jax.devices()[:4]).check_batch(30)
    with pytest.raises(ConfigError, match=r"nearest sizes are 4$"):
        Replicas(jax.devices()[:4]).check_batch(3)
    Replicas(jax.devices()[:4]).check_batch(32)
    uneven = [SimpleNamespace(process_index=host) for host in (0, 1, 0)]
    with pytest.raises(ConfigError, match="found 2 on this host and 3 on 2 hosts"):
        Replicas(uneven).check_batch(30)


@pytest.mark.parametrize(("total", "hosts"), [(10, 1), (10, 3), (12, 4), (2, 4)])
def test_hosts_share_rows(monkeypatch, total, hosts):
    found = []
    for host in range(hosts):
        monkeypatch.setattr(Replicas, "share", Share(host, hosts))
        found.append(Replicas().host_rows(total))
    assert len({len(rows) for rows in found}) == 1  # gathered as they are
    np.testing.assert_array_equal(np.concatenate(found)[:total], np.arange(total))
    assert max(map(max, found)) < total


def test_a_directory_that_a_host_does_not_see_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("l2rm_jax.devices.hosts.DIRECTORY_SECONDS", 0.0)
    require_shared_directory(tmp_path)
    with pytest.raises(ConfigError, match="that all hosts share"):
        require_shared_directory(tmp_path / "missing")
