"""Every method and every head; new entries of METHODS and HEADS are tested automatically.

By default, each method and each head is traced, and one step is compiled and run; `-m slow` traces
each method with a further head, and runs each method and each head.
"""

import itertools

import jax
import numpy as np
import pytest

from l2rm_jax.devices.parallel import AXIS, Replicas
from l2rm_jax.methods import make_method
from l2rm_jax.models import HEADS, make_model
from tests.grid import (
    CELLS,
    MAIN,
    STEPPING,
    VOCABULARY,
    WARMUP,
    batches,
    make_cell,
    start,
    tiny_config,
)

# Each method and each head at least once; `test_devices.py` has L2RM with SGR and SAF. The methods
# whose steps compile longest come last, as do the heads that compile fastest. `ncr` has the updates
# of `bicro`, with other labels.
METHODS_LEFT, HEADS_LEFT = (
    [name for name in names if name not in done]
    for names, done in ((STEPPING, ["l2rm", "ncr"]), (HEADS, ["sgr", "saf"]))
)
METHODS_LEFT.sort(key=("crcl", "bicro", "sps", "cream", "in2r").__contains__)
HEADS_LEFT.sort(key=("linear", "vse").__contains__)
SOME = [
    pytest.param(*cell, marks=pytest.mark.slow)
    for cell in itertools.zip_longest(METHODS_LEFT, HEADS_LEFT, fillvalue="linear")
]
# L2RM, whose step uses the most of a head, with every head; every method with one that is cheap.
TRACED = [cell for cell in CELLS if cell[0] == "l2rm" or cell[1] == "vse"]
# A sample of the other pairs: each method with a head that it has in no other test.
FURTHER = list(zip(METHODS_LEFT, itertools.cycle([*HEADS][2:]), strict=False))
FURTHER = [cell for cell in FURTHER if cell not in TRACED]


def shapes(tree) -> list:
    return [(jax.tree_util.keystr(path), x.shape) for path, x in jax.tree.leaves_with_path(tree)]


@pytest.mark.parametrize(
    ("method", "head", "epoch"),
    [
        *((*cell, MAIN) for cell in TRACED),
        *(pytest.param(*cell, MAIN, marks=pytest.mark.slow) for cell in FURTHER),
        *((method, "vse", WARMUP) for method in STEPPING),
    ],
)
def test_shapes_of_a_step(method, head, epoch):
    """A step keeps the shapes of the state and reports a loss."""
    cell = make_cell(tiny_config(method, head))
    after, metrics = jax.eval_shape(cell.method.step, cell.state, next(batches(cell, epoch)))
    assert shapes(after) == shapes(cell.state)
    assert metrics["loss"].shape == () and metrics["grad_norm"].shape == ()


@pytest.mark.parametrize(("method", "head"), [("infonce", "linear"), *SOME])  # the first is cheap
def test_a_step_on_one_device_and_on_four(method, head):
    config = tiny_config(method, head)
    cell = make_cell(config)
    batch, state = next(batches(cell, MAIN)), start(cell.method, jax.random.key(0), cell.sample)
    mapped = make_method(make_model(config, VOCABULARY, AXIS), config)
    found = {}
    for devices in (1, 4):
        replicas = Replicas(jax.devices()[:devices])
        shards = {name: replicas.shard(each) for name, each in batch.items()}
        after, values = jax.device_get(replicas.map(mapped.step)(replicas.replicate(state), shards))
        moved = jax.tree.map(lambda x, y: (x != y).any(), after.params, state.params)
        assert any(jax.tree.leaves(moved))
        values.pop("transport_iterations", None)  # depend on the rounding of the costs
        found[devices] = {name: float(x) for name, x in values.items()}
    assert np.isfinite(list(found[1].values())).all() and found[1]["loss"] > 0
    # NAAF divides cosines by a small temperature, which multiplies their rounding.
    rel = 5e-4 if head == "naaf" else 1e-4
    assert found[4] == pytest.approx(found[1], rel=rel, abs=1e-6)
