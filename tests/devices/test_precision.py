"""Precision of each matrix product, read from lowered programs that are not run.

Only accelerators obey it; a CPU always computes in float32.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import make_method
from l2rm_jax.methods.cost import cost, init_cost
from l2rm_jax.models import make_model
from l2rm_jax.ot import partial_sinkhorn
from l2rm_jax.run.inputs import read_data
from tests import tiny

SIZE = 6


def product_precisions(function, *inputs) -> set[str]:
    """Precisions that the program of a function sets for its matrix products."""
    lines = jax.jit(function).lower(*inputs).as_text().splitlines()
    products = [line for line in lines if "dot_general" in line]
    assert products

    def kind(line: str) -> str:
        if "lhs_precision_type = bf16" in line and "accumulation_type = f32" in line:
            return "bfloat16"
        return re.search(r"precision = \[(\w+), \1\]", line)[1]

    return {kind(line) for line in products}


def step(head: str):
    config = defaults.default()
    config.model.head = head
    config.model.update(tiny.MODEL)
    config.train.batch_size, config.train.warmup_epochs = SIZE, 0
    method = make_method(make_model(config, 20), config)
    batch = Batch(
        images=np.ones((SIZE, 3, 5), np.float32),
        regions=np.full(SIZE, 3, np.int32),
        tokens=np.ones((SIZE, 4), np.int32),
        lengths=np.full(SIZE, 4, np.int32),
        pair_index=np.arange(SIZE, dtype=np.int32),
        image_index=np.arange(SIZE, dtype=np.int32),
    )
    state = jax.eval_shape(method.init, jax.random.key(0), batch)
    return method.step, state, {"matched": batch, "mismatched": batch}


@pytest.mark.slow
@pytest.mark.parametrize("head", ["sgr", "pem"])
def test_every_product_of_a_step_has_a_precision(head):
    function, *inputs = step(head)
    with matmul_precision("float32"):
        assert product_precisions(function, *inputs) == {"HIGHEST"}
    with matmul_precision("bfloat16"):
        assert product_precisions(function, *inputs) == {"bfloat16", "HIGHEST"}


def test_cost_and_transport_stay_in_float32():
    sims = jnp.ones((SIZE, SIZE))
    with matmul_precision("bfloat16"):
        assert product_precisions(cost, init_cost(SIZE), sims) == {"HIGHEST"}
        assert product_precisions(lambda c: partial_sinkhorn(c, 0.1, epsilon=0.1).plan, sims) == {
            "HIGHEST"
        }


def test_a_precision_that_does_not_exist_is_refused():
    config = defaults.default()
    config.precision = "half"
    with pytest.raises(ConfigError, match="precision: found 'half', expected float32 or bfloat16"):
        read_data(config, "nowhere")
