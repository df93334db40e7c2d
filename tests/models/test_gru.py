"""The GRU's hand-written gradient against the gradient of the plain scan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models import gru


@pytest.mark.parametrize("length", [1, 5])
def test_gradients_are_those_of_the_scan(length):
    rng = np.random.default_rng(length)
    count, size = 3, 4
    kernels = rng.normal(size=(2, size, 3 * size)).astype(np.float32)
    gates = gru._Gates(*rng.normal(size=(4, length, 2, count, size)).astype(np.float32))
    mask = np.arange(length)[:, None] < rng.integers(1, length + 1, count)
    masks = np.stack([mask, mask[::-1]], axis=1).astype(np.float32)
    weights = rng.normal(size=(length, 2, count, size)).astype(np.float32)

    def gradients(states):
        def total(*inputs):
            return jnp.sum(weights * states(*inputs, masks))

        return jax.grad(total, argnums=(0, 1))(kernels, gates)

    ours, plain = gradients(gru._hidden_states), gradients(gru._scan_states)
    for grad, expected in zip(*map(jax.tree.leaves, (ours, plain)), strict=True):
        np.testing.assert_allclose(grad, expected, atol=1e-6)
        assert np.any(expected) or length == 1
