"""The queue of clean pairs and its means, beside lists and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses.rectification import append, nearest_mean

RNG = np.random.default_rng(0)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_a_ring_keeps_the_newest():
    ring, count, kept = jnp.zeros((5, 3)), jnp.int32(0), []
    for _ in range(4):
        vectors, chosen = RNG.normal(size=(4, 3)).astype(np.float32), RNG.uniform(size=4) < 0.6
        ring, count = jax.jit(append)(ring, count, vectors, chosen)
        kept += [*vectors[chosen]]
        assert int(count) == len(kept)
        newest = sorted(map(tuple, kept[-5:]))
        assert sorted(map(tuple, np.asarray(ring)[: len(kept)])) == newest
    assert len(kept) > 5


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_means_are_of_the_nearest_among_the_filled(count):
    queries, keys, values = (unit(RNG.normal(size=(n, 4))).astype(np.float32) for n in (3, 6, 6))
    found = jax.jit(nearest_mean, static_argnames="k")(queries, keys, values, jnp.int32(count), k=3)
    for query, mean in zip(queries, np.asarray(found), strict=True):
        order = np.argsort(-(keys[:count] @ query))[:3]
        expected = unit(values[order].sum(axis=0)) if count else np.zeros(4)
        np.testing.assert_allclose(mean, expected, atol=1e-6)
