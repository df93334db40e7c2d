"""Dropout. The golden arrays cover the other layers; they were made without dropout."""

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax.models.layers import Dropout


def dropout(rate, x, train, seed=0):
    return np.asarray(Dropout(rate).apply({}, x, train, rngs={"dropout": jax.random.key(seed)}))


def test_dropout_keeps_the_mean_and_draws_each_sample_independently():
    x = jnp.ones((400, 60))
    out = dropout(0.4, x, True)
    np.testing.assert_allclose(np.unique(out), [0.0, 1 / 0.6], rtol=1e-6)
    assert abs(out.mean() - 1) < 0.02
    # Dropout of a sample does not depend on the rest of the batch.
    np.testing.assert_array_equal(dropout(0.4, x[:7], True), out[:7])
    assert len(np.unique(out, axis=0)) == 400
    assert (dropout(0.4, x, True, seed=1) != out).any()


def test_no_dropout_in_evaluation_or_at_rate_zero():
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(dropout(0.4, x, False), x)
    np.testing.assert_array_equal(dropout(0.0, x, True), x)
