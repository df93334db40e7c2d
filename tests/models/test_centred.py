"""IN2R's model: centred vectors, padding, and the running mean of evaluation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models.centred import MOMENTUM, CentredImageEncoder, CentredTextEncoder, Centring

RNG = np.random.default_rng(0)
COUNTS = np.array([2, 1, 3, 3], np.int32)
LENGTH, FEATURES, SIZE = 3, 5, 8
ENCODERS = {
    "images": CentredImageEncoder(SIZE, dropout=0.0),
    "captions as vectors": CentredTextEncoder(0, 4, SIZE, dropout=0.0),
}
ITEMS = RNG.normal(size=(len(COUNTS), LENGTH, FEATURES)).astype(np.float32)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@partial(jax.jit, static_argnums=2)
def centre(vectors, mean, train):
    variables = {"batch_stats": {"mean": jnp.asarray(mean)}}
    return Centring().apply(variables, vectors, train, mutable=["batch_stats"])


def test_centred_vectors_have_unit_length_and_ignore_a_shift():
    vectors = RNG.normal(size=(6, 4)).astype(np.float32)
    found, _ = centre(vectors, np.zeros(4, np.float32), True)
    np.testing.assert_allclose(found, unit(vectors - vectors.mean(axis=0)), atol=1e-6)
    np.testing.assert_allclose(found, centre(vectors + 0.5, np.zeros(4), True)[0], atol=1e-5)


def test_evaluation_subtracts_the_running_mean_whatever_the_batch():
    vectors, mean = (RNG.normal(size=size).astype(np.float32) for size in ((6, 4), 4))
    _, after = centre(vectors, mean, True)
    expected = mean + MOMENTUM * (vectors.mean(axis=0) - mean)
    np.testing.assert_allclose(after["batch_stats"]["mean"], expected, atol=1e-6)
    found, _ = centre(vectors, mean, False)
    np.testing.assert_allclose(found, unit(vectors - mean), atol=1e-6)
    np.testing.assert_array_equal(found[:2], centre(vectors[:2], mean, False)[0])


@pytest.mark.parametrize(
    "name", ["images", pytest.param("captions as vectors", marks=pytest.mark.slow)]
)
def test_padding_changes_nothing(name):
    encoder = ENCODERS[name]
    shapes = jax.eval_shape(lambda key: encoder.init(key, ITEMS, COUNTS, False), jax.random.key(0))
    variables = jax.tree.map(lambda x: RNG.uniform(0.1, 1, x.shape).astype(np.float32), shapes)
    real = np.arange(LENGTH + 2)[None] < COUNTS[:, None]
    wide = np.pad(ITEMS, [(0, 0), (0, 2), (0, 0)])

    @jax.jit
    def run(items):
        def loss(params):
            state = {**variables, "params": params}
            code, after = encoder.apply(state, items, COUNTS, True, mutable=["batch_stats"])
            return jnp.sum(code.overall**3), (code.overall, after)

        return jax.grad(loss, has_aux=True)(variables["params"])

    expected = run(np.where(real[:, :LENGTH, None], ITEMS, 0.0))
    found = run(np.where(real[..., None], wide, np.nan).astype(np.float32))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), found, expected
    )
