"""Two networks that split for each other: who trains on what, and when."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import make_method
from l2rm_jax.methods.base import BEST, LAST
from l2rm_jax.methods.cream import cutoffs
from l2rm_jax.methods.ncr import clean_labels
from l2rm_jax.models import make_model
from tests.grid import MAIN, VOCABULARY, WARMUP, batches, make_cell, pairs, tiny_config

COUNT = 40  # pairs of `pairs()`


def method_of(name: str, **fields):
    config = tiny_config(name, "vse")
    config.update_from_flattened_dict(fields)
    return make_method(make_model(config, VOCABULARY), config)


def losses() -> np.ndarray:
    """Losses by which network 0 finds the first 30 pairs matched, network 1 the last 25."""
    rng = np.random.default_rng(0)
    low = np.stack([np.arange(COUNT) < 30, np.arange(COUNT) >= 15], axis=1)
    return np.where(low, rng.normal(0.2, 0.03, low.shape), rng.normal(1.0, 0.03, low.shape))


@pytest.mark.parametrize("name", ["ncr", "bicro", "in2r"])
def test_each_network_trains_on_the_split_of_the_other(name):
    plan = method_of(name).plan(lambda score: losses(), pairs(), MAIN)
    expected = {
        "matched_a": np.arange(15, 40),
        "mismatched_a": np.arange(15),
        "matched_b": np.arange(30),
        "mismatched_b": np.arange(30, 40),
    }
    assert plan.streams.keys() == expected.keys()
    for stream, rows in expected.items():
        np.testing.assert_array_equal(plan.streams[stream], rows, err_msg=stream)
    assert next(iter(plan.streams)) == "matched_b"  # the longer one: an epoch is a pass over it
    assert plan.report["matched"] == 27.5
    if name == "ncr":
        posterior = plan.values["posterior"]
        assert (posterior[0, 15:] > 0.9).all() and (posterior[1, :30] > 0.9).all()
        assert (posterior[0, :15] < 0.1).all() and (posterior[1, 30:] < 0.1).all()


@pytest.mark.parametrize("name", ["ncr", "bicro", "sps", "cream", "in2r"])
def test_a_single_network_trains_on_its_own_split(name):
    config = tiny_config(name, "vse")
    config.train.networks = 1
    cell = make_cell(config)
    assert cell.method.networks == 1
    plan = cell.method.plan(lambda score: losses()[:, :1], pairs(), MAIN)
    first = next(iter(plan.streams))
    np.testing.assert_array_equal(plan.streams[first], np.arange(30))
    for batch in (next(batches(cell, epoch)) for epoch in (WARMUP, MAIN)):
        after, metrics = jax.eval_shape(cell.method.step, cell.state, batch)
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, cell.state)
        assert metrics["loss"].shape == ()


def test_networks_of_cream_train_on_a_common_split():
    plan = method_of("cream").plan(lambda score: losses(), pairs(), MAIN)
    expected = {"clean": np.arange(15, 30), "hard": np.r_[:15, 30:40]}
    assert plan.streams.keys() == {f"{name}_{letter}" for name in expected for letter in "ab"}
    for name, rows in expected.items():
        for letter in "ab":
            np.testing.assert_array_equal(plan.streams[f"{name}_{letter}"], rows)
    np.testing.assert_allclose(plan.values["posterior"][:, expected["hard"]], 0.5, atol=0.1)
    np.testing.assert_array_equal(plan.values["subset"][0] == 1, plan.values["subset"][1] == 1)
    assert plan.once == {"hard_a", "hard_b"}


def test_cutoffs_of_cream():
    means = {"clean": 0.8, "hard": 0.6, "noisy": 0.2}
    sizes = {"clean": 20.0, "hard": 10.0, "noisy": 10.0}
    found = cutoffs(means, sizes, jnp.int32(3), 10)
    assert [float(found[name]) for name in means] == pytest.approx([7, 0.6, 0.6])
    found = cutoffs(means, sizes, jnp.int32(12), 10)
    assert [float(found[name]) for name in means] == pytest.approx([0.6, 0.6, 0.6])
    found = cutoffs(means, {**sizes, "clean": 200.0}, jnp.int32(3), 10)
    assert [float(found[name]) for name in means] == pytest.approx([0, 0, 168 / 220])


@pytest.mark.parametrize("name", ["ncr", "bicro", "sps"])
def test_streams_start_at_their_epochs(name):
    starts = {"co_teaching.mismatched_epoch": 2, "sps.clean_epoch": 1, "sps.noisy_epoch": 2}
    method = method_of(name, **starts)
    kinds = [
        {stream.rpartition("_")[0] for stream in plan.streams}
        for plan in (
            method.plan(lambda score: losses(), pairs(), epoch) for epoch in range(MAIN + 3)
        )
    ]
    later = {"noisy"} if name == "sps" else {"mismatched"}
    first = {"strict"} if name == "sps" else {"matched"}
    assert kinds == [{"warmup"}, first, first, first | later]


def test_a_split_by_cross_fitting_is_the_same_for_both():
    weight = np.linspace(0, 1, COUNT)
    data = replace(pairs(), posterior=1 - weight)
    plan = method_of("sps", **{"split.by": "judgement"}).plan(None, data, MAIN)
    for letter in "ab":
        np.testing.assert_array_equal(
            plan.streams[f"strict_{letter}"], np.flatnonzero(weight > 0.6)
        )
        np.testing.assert_array_equal(
            plan.streams[f"noisy_{letter}"], np.flatnonzero(weight <= 0.5)
        )
    np.testing.assert_allclose(plan.values["posterior"], [weight] * 2)
    assert plan.once == {"clean_a", "clean_b"}
    warmup = method_of("sps", **{"split.by": "judgement"}).plan(None, data, WARMUP)
    np.testing.assert_array_equal(warmup.streams["warmup_a"], np.flatnonzero(weight >= 0.5))


def test_sps_goes_on_from_the_best_model_of_its_warm_up():
    method = method_of("sps", **{"train.warmup_epochs": 2})
    assert [method.begin(epoch) for epoch in range(4)] == [LAST, LAST, BEST, LAST]
    assert method_of("sps", **{"train.warmup_epochs": 0}).begin(0) == LAST


def test_labels_of_the_code_are_those_of_other_pairs():
    weight, predicted = np.array([0.9, 0.6]), np.array([0.5, 0.2])
    np.testing.assert_allclose(clean_labels(weight, predicted, "paper"), [0.95, 0.68])
    code = clean_labels(weight, predicted, "code")
    np.testing.assert_allclose(code, [[0.95, 0.92], [0.8, 0.68]])


def test_an_unknown_form_of_the_margins_is_refused():
    with pytest.raises(ConfigError, match=r"co_teaching\.margins: found 'codes'"):
        method_of("ncr", **{"co_teaching.margins": "codes"})
