"""Numbers of each pair in the state: read and written by a step, on any number of devices."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.devices.parallel import AXIS, Replicas
from l2rm_jax.methods.base import Method, TrainState
from l2rm_jax.methods.pair_values import (
    initial_state,
    read_pair_values,
    replace_pair_values,
    write_pair_values,
)


def state_of(networks: int = 1) -> TrainState:
    def init(key, batch):
        return TrainState(*[jnp.zeros(())] * 5, own={"other": jnp.ones(2)}, key=key)

    method = Method(init, pair_values={"label": 0.5, "flag": 1.0}, networks=networks)
    return initial_state(method, jax.random.key(0), None, pairs=6)


def test_they_start_with_the_values_of_the_method_and_are_replaced_by_a_plan():
    state = state_of(networks=2)
    assert {name: x.shape for name, x in state.own["pairs"].items()} == {
        "label": (2, 6),
        "flag": (2, 6),
    }
    flags = np.arange(12).reshape(2, 6) % 2 == 0
    state = replace_pair_values(state, {"flag": flags})
    np.testing.assert_array_equal(state.own["pairs"]["flag"], flags.astype(np.float32))
    np.testing.assert_array_equal(state.own["pairs"]["label"], np.full((2, 6), 0.5))
    assert state.own["other"].shape == (2,)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_step_reads_and_writes_those_of_its_batch(devices):
    """Pair 4 is twice in the batch, one row is no pair: the larger value counts, the other none."""
    index, values = np.array([4, 0, -1, 4], np.int32), jnp.array([0.1, 0.2, 0.9, 0.3])
    replicas = Replicas(jax.devices()[:devices])

    def step(state, batch):
        pairs = SimpleNamespace(pair_index=batch)
        read = read_pair_values(state, "label", pairs, AXIS)
        return write_pair_values(state, "label", pairs, values, AXIS), read

    state = replicas.replicate(replace_pair_values(state_of(), {"label": np.arange(6.0)}))
    state, read = replicas.map(step)(state, replicas.shard(index))
    assert len(read.addressable_shards) == devices
    for own_read, own_label in zip(
        read.addressable_shards, state.own["pairs"]["label"].addressable_shards, strict=True
    ):
        np.testing.assert_allclose(own_read.data, [4, 0, np.nan, 4])
        np.testing.assert_allclose(own_label.data, [0.2, 1, 2, 3, 0.3, 5])
