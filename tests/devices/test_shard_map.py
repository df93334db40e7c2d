"""`shard_map` computes what `pmap` computes."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from l2rm_jax.devices import parallel
from l2rm_jax.devices.parallel import AXIS, Replicas
from l2rm_jax.methods import make_method
from l2rm_jax.models import make_model
from tests.devices import test_devices
from tests.devices.test_devices import VOCABULARY, random_batch, small_config

STEPS, STREAMS = 4, ("matched", "mismatched")


def trainer(monkeypatch, devices: int):
    """Return a function that takes a step with each of these maps, on the state of the step before.

    Steps are those of `l2rm`, whose transport has a `while_loop`. Each map is compiled once.
    """
    config = small_config("vse", mask="same_image", rho=0.5)
    replicas = Replicas(jax.devices()[:devices])
    method = make_method(make_model(config, VOCABULARY, AXIS), config)
    steps = {}
    for name in ("pmap", "shard_map"):
        monkeypatch.setattr(parallel, "MAPPED_BY", name)
        steps[name] = replicas.map(method.step, donate=True)

    def train(mapped_by: list[str]):
        rng, state, metrics = np.random.default_rng(1), None, None
        for name in mapped_by:
            batch = {stream: random_batch(rng, test_devices.SIZE) for stream in STREAMS}
            if state is None:
                state = replicas.replicate(method.init(jax.random.key(3), batch["matched"]))
            shards = {stream: replicas.shard(rows) for stream, rows in batch.items()}
            state, metrics = steps[name](state, shards)
        host = replicas.unreplicate(state.replace(key=jax.random.key_data(state.key)))
        return jax.device_get(host), jax.device_get(replicas.unreplicate(metrics))

    return train


def assert_same_bits(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for x, y in pairs:
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
def test_steps_are_bit_equal_and_either_continues_the_other(monkeypatch):
    """Also half of the steps with one map and half with the other, which is a resumed run."""
    train = trainer(monkeypatch, 2)
    expected = train(["pmap"] * STEPS)
    assert expected[1]["transport_iterations"] > 1
    assert_same_bits(train(["shard_map"] * STEPS), expected)
    for first, second in (("pmap", "shard_map"), ("shard_map", "pmap")):
        names = [first] * (STEPS // 2) + [second] * (STEPS // 2)
        assert_same_bits(train(names), expected)


@pytest.mark.slow
def test_steps_are_bit_equal_on_eight_devices():
    """In a process of its own, as this one simulates four."""
    command = [sys.executable, "-c", f"from {__name__} import check_on_eight; check_on_eight()"]
    environment = {
        **os.environ,
        "JAX_NUM_CPU_DEVICES": "8",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def check_on_eight() -> None:
    assert len(jax.devices()) == 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_devices, "SIZE", 24)
        train = trainer(patch, 8)
        assert_same_bits(train(["shard_map"] * STEPS), train(["pmap"] * STEPS))


def test_local_maps_agree(monkeypatch):
    replicas, rows = Replicas(jax.devices()[:2]), np.arange(8, dtype=np.float32).reshape(2, 4)

    def function(x, whole):
        return {"sum": jax.lax.psum(x, AXIS), "scaled": x * whole["factor"]}

    results = []
    for name in ("pmap", "shard_map"):
        monkeypatch.setattr(parallel, "MAPPED_BY", name)
        mapped = replicas.map_local(function, (0, None))
        results.append(mapped(rows, {"factor": np.float32(3)}))
    assert_same_bits(*results)
    np.testing.assert_array_equal(results[1]["scaled"], 3 * rows)
