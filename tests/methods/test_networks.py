"""Several networks side by side: each equals one trained alone, and scores are their mean."""

import jax
import numpy as np
import pytest

from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import make_method
from l2rm_jax.methods.networks import (
    combine_scores,
    network,
    of_each_network,
    over_networks,
    stack_states,
)
from l2rm_jax.models import make_model
from tests.grid import MAIN, VOCABULARY, WARMUP, batches, make_cell, tiny_config


def config_of(method: str, networks: int = 0, **train):
    config = tiny_config(method, "vse")
    config.model.dropout = 0.0
    config.train.networks = networks
    config.train.update(train)
    return config


def assert_equal_trees(found, expected) -> None:
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "epochs"), [("triplet", [WARMUP, MAIN]), ("l2rm", [MAIN])])
def test_networks_with_equal_keys_are_runs_of_one(method, epochs):
    """Two networks from two states of one network train as two runs of one do."""
    one, two = make_cell(config_of(method)), make_cell(config_of(method, networks=2))
    starts = [one.method.init(jax.random.key(n), one.sample) for n in range(2)]
    state = stack_states(starts)
    step, step_of_one = jax.jit(two.method.step), jax.jit(one.method.step)
    for epoch in epochs:
        for batch in list(batches(two, epoch))[:2]:
            own = of_each_network(batch, 2)
            # A run's random numbers follow from the key of its network.
            keys = [network(state, n).key for n in range(2)]
            given = [each.replace(key=key) for each, key in zip(starts, keys, strict=True)]
            alone = [step_of_one(each, b) for each, b in zip(given, own, strict=True)]
            state, metrics = step(state, batch)
            starts = [each for each, _ in alone]
            for n, (expected, _) in enumerate(alone):
                found = network(state, n)
                assert_equal_trees(
                    (found.params, found.opt_state, found.own, found.step),
                    (expected.params, expected.opt_state, expected.own, expected.step),
                )
            mean = np.mean([values["loss"] for _, values in alone])
            assert float(metrics["loss"]) == pytest.approx(mean, rel=1e-5)
    kernels = [jax.tree.leaves(network(state, n).params)[0] for n in range(2)]
    assert not np.array_equal(*kernels)


def test_inputs_of_different_structure_give_the_same_as_of_one():
    config = config_of("triplet", networks=2)
    config.model.head = "linear"  # initialised fast
    cell = make_cell(config)
    state = jax.jit(cell.method.init)(jax.random.key(0), cell.sample)

    def update(own, given):
        moved = jax.tree.map(lambda x: x + sum(given.values()), own.params)
        return own.replace(params=moved), {"sum": sum(given.values())}

    same, sums = over_networks(update, state, [{"x": 1.0}, {"x": 2.0}])
    mixed, each = over_networks(update, state, [{"x": 1.0}, {"y": 2.0}])
    assert_equal_trees(mixed.params, same.params)
    assert list(sums["sum"]) == [values["sum"] for values in each] == [1.0, 2.0]


def test_scores_of_networks_are_averaged():
    rng = np.random.default_rng(0)
    images, captions = rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 7, 3))
    sims = np.einsum("nid,njd->nij", images, captions)
    np.testing.assert_allclose(combine_scores(list(sims)), sims.mean(0))
    vectors = combine_scores(list(zip(images, captions, strict=True)))
    np.testing.assert_allclose(vectors[0] @ vectors[1].T, sims.mean(0))


@pytest.mark.parametrize(("method", "networks"), [("cca", 2), ("l2rm", 9), ("ncr", 3)])
def test_a_number_of_networks_that_does_not_fit_is_refused(method, networks):
    config = config_of(method, networks)
    if method == "cca":
        config.model.head = "linear"
    with pytest.raises(ConfigError, match=f"train.networks: found {networks}"):
        make_method(make_model(config, VOCABULARY), config)
