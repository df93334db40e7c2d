"""Every method with every head. What METHODS and HEADS list is tested here by itself."""

import functools
import itertools

import jax
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.data.batches import TrainStream
from l2rm_jax.data.dataset import PairDataset, load_data
from l2rm_jax.methods import METHODS, make_method
from l2rm_jax.models import make_model
from l2rm_jax.models.retrieval import HEADS
from l2rm_jax.parallel import AXIS, Replicas

SIZE, VOCABULARY = 8, 300
WARMUP, MAIN = range(2)  # the epochs of the tiny run
CELLS = list(itertools.product(METHODS, HEADS))
# Each method and each head at least once; `test_devices.py` has L2RM with SGR and SAF.
METHODS_LEFT, HEADS_LEFT = (
    [name for name in names if name not in done]
    for names, done in ((METHODS, ["l2rm"]), (HEADS, ["sgr", "saf"]))
)
ENOUGH = range(max(len(METHODS_LEFT), len(HEADS_LEFT)))
SOME = list(zip(ENOUGH, itertools.cycle(METHODS_LEFT), itertools.cycle(HEADS_LEFT)))


def tiny_config(method: str, head: str):
    config = defaults.get_config("quick")
    config.method, config.model.head = method, head
    config.model.embed_dim, config.model.word_dim, config.model.sim_dim = 8, 6, 6
    config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 8, 2, 2
    config.mismatch.protocol, config.mismatch.paired_images = "semi_paired", 3
    config.train.batch_size, config.train.warmup_epochs, config.train.epochs = SIZE, 1, 1
    return config


@functools.cache
def pairs() -> PairDataset:
    config = tiny_config("l2rm", "saf")
    return load_data(config.data, config.mismatch, workdir=None).train


def steps(config, epochs):
    """A method, shapes of its state, and the first batch of these epochs; nothing is compiled.

    What a plan is made from is random, of the shapes that the method's score has.
    """
    method = make_method(make_model(config.model, VOCABULARY), config)
    train, rng = pairs(), np.random.default_rng(0)

    def batch_of(streams: dict, epoch: int) -> dict:
        stream = TrainStream(train, streams, batch_size=SIZE, seed=0, epoch=epoch)
        return next(stream.iterate())

    sample = batch_of({"sample": np.arange(len(train))}, 0)["sample"]
    state = jax.eval_shape(method.init, jax.random.key(0), sample)

    def score_pairs(score):
        shapes = jax.eval_shape(score, state, sample)
        return jax.tree.map(lambda x: rng.uniform(size=(len(train), *x.shape[1:])), shapes)

    plans = {epoch: method.plan(score_pairs, train, epoch) for epoch in epochs}
    batches = [batch_of(plan.streams, epoch) for epoch, plan in plans.items()]
    return method, state, sample, batches


def alike(tree) -> list:
    return [(jax.tree_util.keystr(path), x.shape) for path, x in jax.tree.leaves_with_path(tree)]


@pytest.mark.parametrize(("method", "head"), CELLS)
def test_shapes_of_a_step(method, head):
    """After the warm-up, the state keeps its shapes, and there is a loss."""
    made, state, _, [batch] = steps(tiny_config(method, head), [MAIN])
    after, metrics = jax.eval_shape(made.step, state, batch)
    assert alike(after) == alike(state)
    assert metrics["loss"].shape == () and metrics["grad_norm"].shape == ()


def check_devices(method: str, head: str, *epochs: int) -> None:
    """The first step of these epochs, on 1 and on 4 devices."""
    config = tiny_config(method, head)
    made, _, sample, batches = steps(config, epochs)
    start = made.init(jax.random.key(0), sample)
    mapped = make_method(make_model(config.model, VOCABULARY, AXIS), config)
    found = {1: [], 4: []}
    for devices, metrics in found.items():
        replicas = Replicas(jax.devices()[:devices])
        state, step = replicas.replicate(start), replicas.map(mapped.step)
        for batch in batches:
            shards = {name: replicas.shard(each) for name, each in batch.items()}
            after, values = jax.device_get(step(state, shards))
            moved = jax.tree.map(lambda x, y: (x[0] != y).any(), after.params, start.params)
            assert any(jax.tree.leaves(moved))
            # Iterations feel the rounding of the costs.
            values.pop("transport_iterations", None)
            metrics.append({name: float(x[0]) for name, x in values.items()})
    for one, four in zip(found[1], found[4], strict=True):
        assert np.isfinite(list(one.values())).all() and one["loss"] > 0
        assert four == pytest.approx(one, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("method", "head"), [cell for _, *cell in SOME])
def test_a_step_on_one_device_and_on_four(method, head):
    check_devices(method, head, MAIN)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("method", "head"), CELLS)
def test_every_step_on_one_device_and_on_four(method, head):
    check_devices(method, head, WARMUP, MAIN)
