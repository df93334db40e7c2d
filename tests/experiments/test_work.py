"""Operations and bytes counted in a traced program."""

import jax
import jax.numpy as jnp
import pytest

from experiments.bench import step
from tests.grid import tiny_config

DEVICES = 4
X = jnp.ones((5, 5))
PRODUCT = 2 * 5 * 5 * 5
BYTES = 5 * 5 * 4


def gathered(x):
    return jax.lax.all_gather(x, "batch", tiled=True)


@pytest.mark.parametrize(
    ("function", "operations", "received"),
    [
        (lambda x: x @ x, PRODUCT, 0),
        (lambda x: jnp.einsum("ij,j->i", x, x[0]), PRODUCT / 5, 0),
        (lambda x: jax.lax.scan(lambda c, _: (c @ x, None), x, length=3)[0], 3 * PRODUCT, 0),
        (jax.grad(lambda x: jnp.sum(jax.checkpoint(jnp.dot)(x, x[:, 0]))), 3 * PRODUCT / 5, 0),
        (lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ x @ x, lambda: x), 2 * PRODUCT, 0),
        (gathered, 0, DEVICES * BYTES * 3 / 4),
        (jax.grad(lambda x: gathered(x).sum()), 0, 2 * DEVICES * BYTES * 3 / 4),
        (lambda x: jax.lax.pmean(x, "batch"), 0, 2 * BYTES * 3 / 4),
        (lambda x: jax.jit(gathered)(x @ x), PRODUCT, DEVICES * BYTES * 3 / 4),
    ],
)
def test_work_of_a_program(function, operations, received):
    program = jax.make_jaxpr(function, axis_env=[("batch", DEVICES)])(X)
    assert step.work_of(program.jaxpr, DEVICES) == pytest.approx((operations, received))


@pytest.mark.slow
def test_devices_share_the_head_and_receive_all_images():
    config = tiny_config("l2rm", "saf")
    config.train.batch_size = 64
    one, four, eight = (step.step_work(config, n, 12, 5, 7) for n in (1, 4, 8))
    assert one.received == 0
    assert one.operations / 4 < four.operations < one.operations / 3
    codes = 64 * (5 + 1) * config.model.embed_dim * 4  # regions and the global vector
    assert eight.received > 2 * 2 * codes * 7 / 8  # both streams, there and back
