"""Gradients written by hand; what attention computes is pinned by the golden arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models.attention import mix_regions, squared_difference

PLAIN = {
    "mix": (mix_regions, lambda w, x: jnp.einsum("ircl,ird->icld", w, x), "ircl", "ird"),
    "difference": (squared_difference, lambda x, y: (x - y) ** 2, "icld", "cld"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_gradients_written_by_hand_are_those_of_the_plain_form(name):
    ours, plain, *axes = PLAIN[name]
    sizes = {"i": 3, "c": 2, "l": 5, "r": 4, "d": 6}
    keys = jax.random.split(jax.random.key(0), 3)
    inputs = [
        jax.random.normal(key, [sizes[axis] for axis in each])
        for key, each in zip(keys, axes, strict=False)
    ]
    expected, pull_plain = jax.vjp(plain, *inputs)
    found, pull = jax.vjp(ours, *inputs)
    np.testing.assert_array_equal(found, expected)
    slopes = jax.random.normal(keys[-1], found.shape)
    for gradient, reference in zip(pull(slopes), pull_plain(slopes), strict=True):
        np.testing.assert_allclose(gradient, reference, rtol=1e-5, atol=1e-6)
