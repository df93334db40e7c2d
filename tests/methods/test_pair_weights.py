"""`train.weight`: sources of the weights, their use in a step, and fields that do not fit."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.losses import info_nce, osa, osa_code
from l2rm_jax.methods import pair_weights
from l2rm_jax.methods.base import TrainState
from l2rm_jax.methods.pair_values import replace_pair_values
from l2rm_jax.run.inputs import check_settings
from tests import grid
from tests.grid import MAIN, batches, make_cell
from tests.tiny import tiny_config

SCORES = np.array([-0.2, 0.1, 0.4, 0.9, 0.3], np.float32)


def settings(weight: str, curve: str = "osa") -> SimpleNamespace:
    return SimpleNamespace(weight=weight, weight_curve=curve)


def planned(train: SimpleNamespace, epoch: int = 0, score_pairs=None, **fields):
    dataset = SimpleNamespace(**{"posterior": None, "scores": None, **fields})
    return pair_weights.plan_scores(train, None, score_pairs, dataset, epoch)


def test_scores_of_each_source():
    assert planned(settings("none")) == {}
    [judged] = planned(settings("judgement", "linear"), posterior=np.array([0.2, 0.9])).values()
    np.testing.assert_allclose(judged, [0.8, 0.1])
    [of_file] = planned(settings("score"), epoch=3, scores=SCORES).values()
    np.testing.assert_array_equal(of_file, SCORES)
    both = np.stack([SCORES, np.full(5, 0.25)], axis=1)  # of the pair, and of the others
    assert planned(settings("start"), epoch=1) == {}  # it was scored before the first epoch
    for curve, threshold in (("linear", 0.0), ("osa", 0.25), ("osa_code", 0.25)):
        [started] = planned(settings("start", curve), score_pairs=lambda _: both).values()
        np.testing.assert_allclose(started, SCORES - threshold, atol=1e-7)


@pytest.mark.parametrize(
    ("curve", "scores", "message"),
    [
        ("linear", [-1.0, 0.0], "none of the 2 pairs has a weight above 0: found scores -1 to 0"),
        ("osa", [0.1, 0.3], "data.scores: found 0.1 to 0.3, expected some below 0"),
        ("osa_code", [20.0, 30.0], "data.scores: found 20 to 30, expected some below 0"),
        ("osa", [-3.0, 7.5], "data.scores: found up to 7.5, expected differences of cosines"),
    ],
)
def test_scores_that_do_not_fit(curve, scores, message):
    with pytest.raises(DataError, match=message):
        planned(settings("score", curve), scores=np.array(scores))


@pytest.mark.parametrize("curve", pair_weights.CURVES)
def test_a_step_reads_the_weights_of_its_batch(curve):
    state = TrainState(*[jnp.zeros(())] * 5, own={"pairs": {}}, key=jax.random.key(0))
    state = replace_pair_values(state, {pair_weights.SCORE: SCORES})
    batch = SimpleNamespace(pair_index=jnp.array([3, 0, 2]))
    found = pair_weights.batch_weights(settings("score", curve), state, batch, None)
    taken = jnp.asarray(SCORES[[3, 0, 2]])
    curves = {"linear": jnp.clip(taken, 0, 1), "osa": osa(taken), "osa_code": osa_code(taken)}
    np.testing.assert_allclose(found, curves[curve])
    assert pair_weights.batch_weights(settings("none"), None, None, None) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("method", ["infonce", "triplet", "sigmoid"])
def test_methods_train_with_weights(method, scale):
    """The loss of a step with equal weights of 1/2 is half of it, but for SigLIP's negatives."""
    config = grid.tiny_config(method, "vse")
    config.loss.learn_scale = scale
    plain = make_cell(config)
    config = config.copy_and_resolve_references()
    config.train.weight, config.train.weight_curve = "score", "linear"
    weighted = make_cell(config)
    assert plain.method.pair_values == {} and set(weighted.method.pair_values) == {
        "score_of_weight"
    }
    assert weighted.method.losses == {}
    batch = next(batches(plain, MAIN))
    state = grid.start(plain.method, jax.random.key(0), plain.sample)
    count = 1 + max(int(each.pair_index.max()) for each in batch.values())
    halves = state.replace(own={"pairs": {pair_weights.SCORE: jnp.full(count, 0.5)}})
    loss = float(jax.jit(plain.method.step)(state, batch)[1]["loss"])
    half = float(jax.jit(weighted.method.step)(halves, batch)[1]["loss"])
    assert half < loss if method == "sigmoid" else half == pytest.approx(loss / 2, rel=1e-5)


def test_equal_weights_scale_the_loss():
    sims = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)), jnp.float32)
    whole = float(info_nce(sims, tau=0.5))
    assert float(info_nce(sims, tau=0.5, weights=jnp.full(4, 0.3))) == pytest.approx(0.3 * whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.weight": "other"}, "train.weight: found 'other', expected one of none, judgement"),
        ({"train.weight_curve": "other"}, "train.weight_curve: found 'other', expected one of"),
        (
            {"method": "l2rm", "train.weight": "judgement", "train.weight_curve": "linear"},
            "found 'judgement', expected 'none', as l2rm does not weigh its pairs; it chooses them",
        ),
        (
            {"method": "cca", "model.head": "linear", "train.weight": "start"},
            "as cca does not weigh its pairs; train.draw=judgement weighs them",
        ),
        ({"train.weight": "start"}, "train.weight: found 'start', expected none, judgement or"),
        ({"train.weight": "score"}, "data.scores: found no file, train.weight=score requires one"),
        ({"data.scores": "a.npy"}, "data.scores cannot be combined with data.filter=none and"),
        ({"train.weight": "judgement"}, "train.weight_curve: found 'osa', expected 'linear' with"),
        (
            {
                "train.weight": "judgement",
                "train.weight_curve": "linear",
                "train.draw": "rematched",
            },
            "train.draw: found 'rematched', expected 'even' or 'judgement', as infonce keeps a",
        ),
        (
            {"method": "cca", "model.head": "linear", "model.start": "runs/a"},
            "model.start: found 'runs/a', expected none, as cca is fitted in closed form",
        ),
    ],
)
def test_fields_that_cannot_be_combined(changes, message):
    config = tiny_config("infonce", "vse", changes)
    with pytest.raises(ConfigError, match=message):
        check_settings(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"train.weight": "judgement", "train.weight_curve": "linear", "train.draw": "judgement"},
        {"train.weight": "start", "model.start": "runs/a"},
        {"train.weight": "score", "data.scores": "a.npy", "data.filter": "truth"},
    ],
)
def test_fields_that_can(changes):
    check_settings(tiny_config("infonce", "vse", changes))
