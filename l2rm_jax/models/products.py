"""Batched matrix products with gradients that avoid a slow path of XLA on CPUs.

Their gradients exist in reverse mode only.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_vjp
def products(a: Float[Array, "... n m"], b: Float[Array, "... m s"]) -> Float[Array, "... n s"]:
    """`a @ b` for each pair of matrices."""
    return a @ b


def _products_backward(factors: tuple, cotangents: Float[Array, "... n s"]) -> tuple:
    a, b = factors
    return cotangents @ _transpose(b), _stored_on_cpu(_transpose(a)) @ cotangents


products.defvjp(lambda *factors: (products(*factors), factors), _products_backward)


@jax.custom_vjp
def inner_products(
    a: Float[Array, "... n s"], b: Float[Array, "... m s"]
) -> Float[Array, "... n m"]:
    """`a @ b.T` for each pair of matrices."""
    return a @ _transpose(b)


def _inner_products_backward(factors: tuple, cotangents: Float[Array, "... n m"]) -> tuple:
    a, b = factors
    return cotangents @ b, _stored_on_cpu(_transpose(cotangents)) @ a


inner_products.defvjp(
    lambda *factors: (inner_products(*factors), factors), _inner_products_backward
)


def _transpose(x: Float[Array, "... n m"]) -> Float[Array, "... m n"]:
    return jnp.swapaxes(x, -1, -2)


def _stored_on_cpu(x: Array) -> Array:
    """Force `x` to be stored as a separate array on a CPU.

    There XLA runs a product on Eigen if the left factor is a transposition, and otherwise on
    YNNPACK. Two Eigen products at the same time take up to ten times as long.
    """
    return jax.lax.platform_dependent(x, cpu=jax.lax.optimization_barrier, default=lambda x: x)
