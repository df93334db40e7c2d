"""IN2R: trusted pairs, the means of the peer's queue, and a run that is continued."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.errors import ConfigError
from l2rm_jax.losses.contrastive import robust_info_nce
from l2rm_jax.methods import in2r, make_method
from l2rm_jax.methods.base import EpochPlan
from l2rm_jax.methods.networks import network, stack_states
from l2rm_jax.methods.pair_values import replace_pair_values
from l2rm_jax.models import make_model
from tests.grid import MAIN, VOCABULARY, batches, make_cell, pairs, start, tiny_config
from tests.run.tiny_runs import assert_same, run, run_whole, traced
from tests.shared_programs import shared_programs
from tests.tiny import write_vectors

RNG = np.random.default_rng(0)
K = 3


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def test_trusted_pairs_are_surer_than_the_mean_of_the_networks_own():
    peer, own = np.array([0.95, 0.8, 0.6, 0.1]), np.array([0.9, 0.7, 0.2, 0.1])
    plan = in2r.mark_trusted(EpochPlan({}), peer, own)  # the mean of 0.9 and 0.7 is 0.8
    assert plan.values[in2r.TRUSTED].tolist() == [True, False, False, False]
    none = in2r.mark_trusted(EpochPlan({}), peer, np.full(4, 0.2))
    assert none.values[in2r.TRUSTED].all()  # as theirs, if the network calls none matched


@pytest.mark.parametrize("count", [K - 1, K, 6])
def test_mismatched_pairs_train_towards_the_means_of_their_neighbours(count):
    images, captions = (unit(RNG.normal(size=(4, 5))) for _ in range(2))
    queue = {name: unit(RNG.normal(size=(6, 5))) for name in ("images", "captions")}
    loss = partial(robust_info_nce, tau=0.1)
    given = {**queue, "count": jnp.int32(count)}
    found = in2r._rectified_losses(loss, images, captions, given, K)

    def expected(own: np.ndarray, keys: np.ndarray, values: np.ndarray) -> float:
        means = []
        for vector in own:
            nearest = sorted(range(count), key=lambda row: -(keys[row] @ vector))[:K]
            means.append(unit(np.mean([values[row] for row in nearest], axis=0)))
        return 0.5 * float(loss(jnp.asarray(own @ np.stack(means).T))) if count >= K else 0.0

    sides = queue["images"], queue["captions"]
    assert float(found["loss_rectified_captions"]) == pytest.approx(
        expected(images, *sides), rel=1e-5
    )
    assert float(found["loss_rectified_images"]) == pytest.approx(
        expected(captions, *sides[::-1]), rel=1e-5
    )


@pytest.mark.slow
def test_a_step_fills_its_own_queue_and_reads_the_one_of_the_peer():
    cell = make_cell(tiny_config("in2r", "vse"))
    state = start(cell.method, jax.random.key(0), cell.sample)
    for leaf in jax.tree.leaves(state.params):
        np.testing.assert_array_equal(leaf[0], leaf[1])  # both start from the same weights
    given, count = next(batches(cell, MAIN)), len(pairs())
    trusted = np.stack([np.arange(count) % 2 == 0, np.zeros(count, bool)])
    state = replace_pair_values(state, {in2r.TRUSTED: trusted})
    full = {
        name: unit(RNG.normal(size=x.shape[1:])) if x.ndim == 3 else np.int32(K + 2)
        for name, x in state.own.items()
        if name != "pairs"
    }
    own, other = (network(state, n) for n in range(2))
    step = jax.jit(cell.method.step)
    with_queue = [
        stack_states([own.replace(own={**own.own, **a}), other.replace(own={**other.own, **b})])
        for a, b in (({}, {}), (full, {}), ({}, full))
    ]
    found = [step(each, given) for each in with_queue]
    after = found[0][0].own
    assert int(after["count"][0]) == int(trusted[0][given["matched_a"].pair_index].sum()) > 0
    assert int(after["count"][1]) == 0
    lengths = np.linalg.norm(after["images"][0], axis=1)
    np.testing.assert_allclose(lengths[: int(after["count"][0])], 1, rtol=1e-5)
    loss = [float(metrics["loss_rectified_captions_a"]) for _, metrics in found]
    assert loss[0] == loss[1] == 0 < loss[2]


@pytest.mark.slow
@shared_programs()
def test_a_run_continues_with_its_queues(tmp_path):
    vectors = {"data.name": "mine", "data.path": str(write_vectors(tmp_path / "data", train=20))}
    fields = {"method": "in2r", "changes": {"in2r.queue_length": 40, **vectors}}
    whole = run_whole(tmp_path, epochs=2, **fields)
    workdir, trace = tmp_path / "stopped", tmp_path / "stopped.trace"
    with traced(trace):
        run(workdir, epochs=1, **fields)
        results = run(workdir, epochs=2, **fields)
    assert_same(workdir, trace, results, whole)


def test_a_queue_that_is_too_short_is_refused():
    config = tiny_config("in2r", "vse")
    config.in2r.queue_length = config.train.batch_size - 1
    message = r"in2r\.queue_length: found 7, expected at least 8, the larger of"
    with pytest.raises(ConfigError, match=message):
        make_method(make_model(config, VOCABULARY), config)
