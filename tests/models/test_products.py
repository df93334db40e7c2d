"""Products of many matrices: their values, and the gradients that are written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models.products import inner_products, products

CASES = {  # the function, its second factor's shape, and what it is
    "products": (products, (2, 3, 5, 7), "icnm,icms->icns"),
    "inner_products": (inner_products, (2, 3, 7, 5), "icns,icms->icnm"),
}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.vmap(f)])
@pytest.mark.parametrize(("function", "shape", "letters"), CASES.values(), ids=CASES)
def test_products_and_their_gradients_are_those_of_einsum(function, shape, letters, wrap):
    rng = np.random.default_rng(0)
    a, b = (jnp.float32(rng.normal(size=s)) for s in ((2, 3, 4, 5), shape))
    found, pull = jax.vjp(wrap(function), a, b)
    slopes = jnp.float32(rng.normal(size=found.shape))
    expected, pull_expected = jax.vjp(lambda a, b: jnp.einsum(letters, a, b), a, b)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for value, wanted in zip(pull(slopes), pull_expected(slopes), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("function", "shape", "_"), CASES.values(), ids=CASES)
def test_no_left_factor_is_transposed(function, shape, _):
    a, b = jnp.zeros((2, 3, 4, 5)), jnp.zeros(shape)
    slopes = jnp.zeros(jax.eval_shape(function, a, b).shape)
    gradients = jax.jit(lambda a, b, slopes: jax.vjp(function, a, b)[1](slopes))
    compiled = gradients.lower(a, b, slopes).compile().as_text()
    assert "lhs_contracting_dims={3}" in compiled
    assert "lhs_contracting_dims={2}" not in compiled
