"""A pretrained text encoder under every head and every method, on several devices and networks."""

from functools import partial

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from l2rm_jax.devices.parallel import AXIS, Replicas
from l2rm_jax.methods import make_method
from l2rm_jax.methods.base import FRESH
from l2rm_jax.methods.pair_values import initial_state
from l2rm_jax.models import HEADS, make_model
from l2rm_jax.run.pretrained import with_pretrained
from tests import grid
from tests.grid import MAIN, STEPPING, batches, pairs, tiny_config
from tests.models.pretrained.golden import read_bases, read_parameters

# L2RM uses the most of a head.
TRACED = [("l2rm", head) for head in HEADS]
TRACED += [(method, "vse") for method in STEPPING if method != "l2rm"]


def config_of(method, head, text_rate=0.1, **fields):
    config = tiny_config(method, head)
    config.model.text_encoder, config.model.pretrained = "bert", "DIR"
    config.model.text_states = "vector" if head == "linear" else "all"
    config.model.update(fields)
    config.optim.text_rate = text_rate
    return config


def make_cell(config, axis_name=None) -> grid.Cell:
    """As `grid.make_cell`; word numbers of `scenes` beyond the table are cut by the sample."""
    model = make_model(config, grid.VOCABULARY, axis_name, read_bases("bert"))
    method = make_method(model, config)
    sample = small_ids(next(grid.stream({"sample": np.arange(len(pairs()))}, 0)))["sample"]
    state = jax.eval_shape(partial(grid.start, method), jax.random.key(0), sample)
    return grid.Cell(method, state, sample)


def small_ids(batch):
    """The same batch with ids that the small BERT has."""
    rows = read_bases("bert").text.pieces
    return jax.tree.map(
        lambda leaf: leaf % rows if leaf.ndim == 2 and leaf.dtype == np.int32 else leaf, batch
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "head", "text_rate"),
    [
        *((*cell, 0.1) for cell in TRACED if cell[1] in ("vse", "sgr")),
        *((method, "vse", 0.0) for method in ("infonce", "l2rm", "ncr")),
    ],
)
def test_a_step_keeps_the_shapes(method, head, text_rate):
    cell = make_cell(config_of(method, head, text_rate))
    batch = small_ids(next(batches(cell, MAIN)))
    after, metrics = jax.eval_shape(cell.method.step, cell.state, batch)
    shapes = [jax.tree.map(lambda leaf: leaf.shape, tree) for tree in (after, cell.state)]
    assert shapes[0] == shapes[1] and metrics["loss"].shape == ()
    assert "text_base" in cell.state.params
    moments = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(after.opt_state)]
    assert any("text_base" in name for name in moments) == (text_rate > 0)


@pytest.mark.slow
def test_one_device_and_four_drop_the_same_units():
    """With dropout of the base, the loss and the gradient do not depend on the devices."""
    config = config_of("infonce", "vse", base_dropout=0.3)
    cell = make_cell(config)
    batch = small_ids(next(batches(cell, MAIN)))
    state = grid.start(cell.method, jax.random.key(0), cell.sample)
    mapped = make_cell(config, AXIS).method
    found = {}
    for devices in (1, 4):
        replicas = Replicas(jax.devices()[:devices])
        shards = {name: replicas.shard(each) for name, each in batch.items()}
        after, values = jax.device_get(replicas.map(mapped.step)(replicas.replicate(state), shards))
        assert (after.params["text_base"]["words"] != state.params["text_base"]["words"]).any()
        found[devices] = {name: float(x) for name, x in values.items()}
    assert found[4] == pytest.approx(found[1], rel=1e-5)
    silent = make_cell(config_of("infonce", "vse", base_dropout=0.0)).method
    _, values = jax.jit(silent.step)(state, batch)
    assert float(values["loss"]) != pytest.approx(found[1]["loss"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ncr", "crcl"])
def test_every_network_and_every_fresh_start_has_the_pretrained_arrays(method):
    """Two networks of NCR; CRCL restarts in the middle of a run. Heads differ."""
    cell, arrays = make_cell(config_of(method, "vse")), read_parameters("bert")
    starts = [
        with_pretrained(
            initial_state(cell.method, jax.random.key(seed), cell.sample, len(pairs())), arrays
        ).params
        for seed in (0, 1)
    ]
    assert cell.method.networks == (2 if method == "ncr" else 1)
    assert method != "crcl" or FRESH in map(cell.method.begin, range(40))
    for params in starts:
        jax.tree.map(
            lambda found, given: np.testing.assert_array_equal(
                found, np.broadcast_to(given, found.shape)
            ),
            params["text_base"],
            arrays["text_base"],
        )
    kernels = [params["image_encoder"]["regions"]["projection"]["kernel"] for params in starts]
    assert (kernels[0] != kernels[1]).any()
    if method == "ncr":
        assert (kernels[0][0] != kernels[0][1]).any()


@pytest.mark.slow
def test_adapters_alone_are_trained_and_begin_as_nothing():
    """Only the product of two small matrices in each map of attention moves in the base."""
    config = config_of("infonce", "vse", adapter_rank=2, base_dropout=0.0)
    cell, batch = make_cell(config), None
    batch = small_ids(next(batches(cell, MAIN)))
    state = grid.start(cell.method, jax.random.key(0), cell.sample)
    state = with_pretrained(state, read_parameters("bert"))
    plain = make_cell(config_of("infonce", "vse", base_dropout=0.0))
    other = with_pretrained(
        grid.start(plain.method, jax.random.key(0), plain.sample), read_parameters("bert")
    )
    after, metrics = jax.jit(cell.method.step)(state, batch)
    _, expected = jax.jit(plain.method.step)(other, batch)
    assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-6)
    old, new = (flatten_dict(each.params["text_base"]) for each in (state, after))
    moved = {path for path in old if (old[path] != new[path]).any()}
    maps = {("blocks", "attention", name) for name in ("query", "key", "value", "out")}
    assert moved == {(*name, "raise") for name in maps}  # `lower` has no slope while it is zero
    after, _ = jax.jit(cell.method.step)(after, batch)
    new = flatten_dict(after.params["text_base"])
    moved = {path for path in old if (old[path] != new[path]).any()}
    assert moved == {(*name, key) for name in maps for key in ("lower", "raise")}
    assert old[("blocks", "attention", "query", "lower")].shape == (2, 12, 2)
    moments = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(after.opt_state)]
    own = [name for name in moments if "text_base" in name]
    assert len(own) == 2 * 8 and all("lower" in name or "raise" in name for name in own)
