"""Operations of matrix products, counted by hand and by the compiler."""

import jax
import jax.numpy as jnp
import pytest

from l2rm_jax.devices.operations import operations_of

X = jnp.ones((5, 5))
PRODUCT = 2 * 5 * 5 * 5


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x @ x, PRODUCT),
        (lambda x: jnp.einsum("ij,j->i", x, x[0]), PRODUCT / 5),
        (lambda x: jax.lax.scan(lambda c, _: (c @ x, None), x, length=3)[0], 3 * PRODUCT),
        (jax.grad(lambda x: jnp.sum(jax.checkpoint(jnp.dot)(x, x[:, 0]))), 3 * PRODUCT / 5),
        (lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ x @ x, lambda: x), 2 * PRODUCT),
        (jax.jit(lambda x: x @ x), PRODUCT),
    ],
)
def test_operations_of_a_program(function, expected):
    assert operations_of(jax.make_jaxpr(function)(X).jaxpr) == pytest.approx(expected)
