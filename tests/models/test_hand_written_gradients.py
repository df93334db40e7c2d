"""Hand-written gradients of attention, batched products and the GRU, against autodiff."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models import gru
from l2rm_jax.models.attention import mix_regions, mixture_norms, squared_difference
from l2rm_jax.models.encoders import region_products
from l2rm_jax.models.layers import l2_norm
from l2rm_jax.models.sgr import inner_products, products

PLAIN = {
    "mix": (mix_regions, lambda w, x: jnp.einsum("ircl,ird->icld", w, x), "ircl", "ird"),
    "difference": (squared_difference, lambda x, y: (x - y[None]) ** 2, "icld", "cld"),
}


@partial(jax.jit, static_argnums=0)
def with_gradients(function, cotangents, *inputs):
    """The value of a function, and its gradients by the inputs for these cotangents."""
    value, pull = jax.vjp(function, *inputs)
    return value, pull(cotangents)


@pytest.mark.parametrize("name", PLAIN)
def test_hand_written_gradients_equal_those_of_autodiff(name):
    ours, plain, *axes = PLAIN[name]
    sizes = {"i": 3, "c": 2, "l": 5, "r": 4, "d": 6}
    keys = jax.random.split(jax.random.key(0), 3)
    inputs = [
        jax.random.normal(key, [sizes[axis] for axis in each])
        for key, each in zip(keys, axes, strict=False)
    ]
    expected = jax.eval_shape(plain, *inputs)
    cotangents = jax.random.normal(keys[-1], expected.shape)
    expected, references = with_gradients(plain, cotangents, *inputs)
    value, gradients = with_gradients(ours, cotangents, *inputs)
    np.testing.assert_array_equal(value, expected)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(gradient, reference, rtol=1e-5, atol=1e-6)


def test_norms_of_mixtures_of_regions_that_cancel_have_a_lower_bound():
    """Rounding could make the norm zero, and its gradient infinite."""
    regions = jax.random.normal(jax.random.key(0), (1, 18, 64))
    regions = jnp.concatenate([regions, 1e-5 - regions], axis=1)
    regions /= jnp.linalg.norm(regions, axis=-1, keepdims=True)
    weights = jnp.ones((1, 36, 40, 5)) + 1e-6 * jax.random.normal(jax.random.key(1), (1, 1, 40, 5))
    ones = jnp.ones((1, 40, 5))
    norms, [gradient] = with_gradients(
        lambda x: mixture_norms(weights, region_products(x)), ones, regions
    )
    assert jnp.all(norms >= 36 * 3e-4) and jnp.all(norms < 36 * 2e-3)
    assert jnp.abs(gradient).max() < 1e5


def test_norms_from_region_products_are_those_of_the_mixtures():
    """The gradients too; they are zero where all weights or regions are zero."""
    keys = jax.random.split(jax.random.key(0), 3)
    weights = jnp.exp(9 * jax.random.uniform(keys[0], (2, 4, 3, 5))).at[:, :, 1].set(0.0)
    regions = jax.random.normal(keys[1], (2, 4, 6)).at[0, 2:].set(0.0)
    cotangents = jax.random.normal(keys[2], (2, 3, 5))
    expected, references = with_gradients(
        lambda w, x: l2_norm(mix_regions(w, x)), cotangents, weights, regions
    )
    norms, gradients = with_gradients(
        lambda w, x: mixture_norms(w, region_products(x)), cotangents, weights, regions
    )
    np.testing.assert_allclose(norms, expected, rtol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(
            gradient, reference, rtol=1e-4, atol=1e-4 * jnp.abs(reference).max()
        )


PRODUCTS = {  # the function, the shape of its second factor, and the einsum that it computes
    "products": (products, (2, 3, 5, 7), "icnm,icms->icns"),
    "inner_products": (inner_products, (2, 3, 7, 5), "icns,icms->icnm"),
}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.vmap(f)])
@pytest.mark.parametrize(("function", "shape", "letters"), PRODUCTS.values(), ids=PRODUCTS)
def test_products_and_their_gradients_equal_einsum(function, shape, letters, wrap):
    rng = np.random.default_rng(0)
    a, b = (jnp.float32(rng.normal(size=s)) for s in ((2, 3, 4, 5), shape))
    einsum = partial(jnp.einsum, letters)
    cotangents = jnp.float32(rng.normal(size=jax.eval_shape(einsum, a, b).shape))
    product, gradients = with_gradients(wrap(function), cotangents, a, b)
    expected, references = with_gradients(einsum, cotangents, a, b)
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-6)
    for grad, expected_grad in zip(gradients, references, strict=True):
        np.testing.assert_allclose(grad, expected_grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [1, 5])
def test_gradients_of_the_gru_are_those_of_its_scan(length):
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

        return jax.jit(jax.grad(total, argnums=(0, 1)))(kernels, gates)

    ours, plain = gradients(gru._hidden_states), gradients(gru._scan_states)
    for grad, expected in zip(*map(jax.tree.leaves, (ours, plain)), strict=True):
        np.testing.assert_allclose(grad, expected, atol=1e-6)
        assert np.any(expected) or length == 1
