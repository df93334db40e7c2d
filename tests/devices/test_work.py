"""Operations of a program, counted before it is compiled."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.devices.work import count_operations, operations_per_second

A, B = jnp.ones((3, 4)), jnp.ones((4, 5))
PRODUCT = 2 * 3 * 4 * 5


def test_products_loops_branches_and_devices_are_counted():
    assert count_operations(lambda a, b: jnp.tanh(a @ b) + 1, A, B) == PRODUCT
    batched = jnp.ones((7, 3, 4)), jnp.ones((7, 4, 5))
    assert count_operations(jnp.matmul, *batched) == 7 * PRODUCT

    def loop(a, b):
        return jax.lax.scan(lambda carry, _: (carry, (carry @ b).sum()), a, None, length=11)[1]

    assert count_operations(loop, A, B) == 11 * PRODUCT

    def branch(a, b):
        return jax.lax.cond(a[0, 0] > 0, lambda: (a @ b) @ b.T, lambda: a)

    assert count_operations(branch, A, B) == 2 * PRODUCT
    kernel, image = jnp.ones((6, 2, 3, 3)), jnp.ones((1, 2, 8, 8))
    convolve = partial(jax.lax.conv, window_strides=(1, 1), padding="SAME")
    assert count_operations(convolve, image, kernel) == 2 * 8 * 8 * 6 * 2 * 9
    replicas = Replicas(jax.local_devices()[:2])
    mapped = replicas.map(lambda a, b: a @ b).function
    assert count_operations(mapped, jnp.ones((2, 3, 4)), jnp.ones((2, 4, 5))) == 2 * PRODUCT


def test_a_gradient_costs_three_times_its_function():
    def loss(b):
        return ((jnp.ones((64, 4)) @ b) @ jnp.ones((5, 5))).sum()

    forward = count_operations(loss, B)
    assert forward < count_operations(jax.value_and_grad(loss), B) <= 3 * forward


def test_the_speed_of_this_machine_is_plausible():
    assert 1e8 < operations_per_second() < 1e15
    assert operations_per_second() == pytest.approx(operations_per_second(), rel=5)
