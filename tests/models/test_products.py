"""Batched matrix products: their values and their hand-written gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models.sgr import inner_products, products

CASES = {  # the function, the shape of its second factor, and the einsum that it computes
    "products": (products, (2, 3, 5, 7), "icnm,icms->icns"),
    "inner_products": (inner_products, (2, 3, 7, 5), "icns,icms->icnm"),
}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.vmap(f)])
@pytest.mark.parametrize(("function", "shape", "letters"), CASES.values(), ids=CASES)
def test_products_and_their_gradients_equal_einsum(function, shape, letters, wrap):
    rng = np.random.default_rng(0)
    a, b = (jnp.float32(rng.normal(size=s)) for s in ((2, 3, 4, 5), shape))
    product, pull = jax.vjp(wrap(function), a, b)
    cotangents = jnp.float32(rng.normal(size=product.shape))
    expected, pull_expected = jax.vjp(lambda a, b: jnp.einsum(letters, a, b), a, b)
    np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-6)
    for grad, expected_grad in zip(pull(cotangents), pull_expected(cotangents), strict=True):
        np.testing.assert_allclose(grad, expected_grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("function", "shape", "_"), CASES.values(), ids=CASES)
def test_no_left_factor_is_transposed(function, shape, _):
    a, b = jnp.zeros((2, 3, 4, 5)), jnp.zeros(shape)
    cotangents = jnp.zeros(jax.eval_shape(function, a, b).shape)
    gradients = jax.jit(lambda a, b, cotangents: jax.vjp(function, a, b)[1](cotangents))
    compiled = gradients.lower(a, b, cotangents).compile().as_text()
    assert "lhs_contracting_dims={3}" in compiled
    assert "lhs_contracting_dims={2}" not in compiled
