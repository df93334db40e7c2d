"""Products of many small matrices, whose gradients avoid a CPU's slower library."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_vjp
def products(a: Float[Array, "... n m"], b: Float[Array, "... m s"]) -> Float[Array, "... n s"]:
    """`a b`, of each pair of matrices; in reverse mode alone."""
    return a @ b


def _products_backward(factors: tuple, slopes: Float[Array, "... n s"]) -> tuple:
    a, b = factors
    return slopes @ _transposed(b), _stored(_transposed(a)) @ slopes


products.defvjp(lambda *factors: (products(*factors), factors), _products_backward)


@jax.custom_vjp
def inner_products(
    a: Float[Array, "... n s"], b: Float[Array, "... m s"]
) -> Float[Array, "... n m"]:
    """`a b'`, of each pair of matrices; in reverse mode alone."""
    return a @ _transposed(b)


def _inner_products_backward(factors: tuple, slopes: Float[Array, "... n m"]) -> tuple:
    a, b = factors
    return slopes @ b, _stored(_transposed(slopes)) @ a


inner_products.defvjp(
    lambda *factors: (inner_products(*factors), factors), _inner_products_backward
)


def _transposed(x: Float[Array, "... n m"]) -> Float[Array, "... m n"]:
    return jnp.swapaxes(x, -1, -2)


def _stored(x: Array) -> Array:
    """`x`, on a CPU as an array of its own: XLA gives a product to Eigen where it finds the left
    factor transposed, to YNNPACK otherwise. Two of Eigen's at once take up to ten times as long."""
    return jax.lax.platform_dependent(x, cpu=jax.lax.optimization_barrier, default=lambda x: x)
