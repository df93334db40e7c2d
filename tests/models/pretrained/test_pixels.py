"""Pixels in a model: numbers, random crops, patches that are left out, several devices."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.devices.parallel import AXIS, Replicas
from l2rm_jax.methods import make_method
from l2rm_jax.models import make_model
from l2rm_jax.models.pretrained import VisionTransformer, vision
from l2rm_jax.models.pretrained.vision import random_crop, to_numbers
from l2rm_jax.pretrained.preparation import Preparation
from l2rm_jax.pretrained.specs import Bases
from tests import grid
from tests.grid import MAIN, batches, pairs, tiny_config
from tests.models.pretrained.golden import read_bases, read_parameters

PREPARATION = Preparation(24, 24, 3, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


def image_base(kind="clip"):
    return replace(read_bases(kind).image, preparation=PREPARATION)


def test_numbers_are_standardised_by_channel():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 24, 24, 3), np.uint8)
    expected = (pixels / 255 - np.array([0.4, 0.5, 0.6])) / np.array([0.2, 0.25, 0.3])
    found = to_numbers(jnp.asarray(pixels), PREPARATION)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_crop_is_a_part_of_the_picture_that_fills_the_square():
    """On a ramp of rows and columns, a crop shows its place, its size, and if it is mirrored."""
    size, crops = 32, 200
    ramp = np.stack(np.broadcast_arrays(*np.ogrid[:size, :size], 0), axis=-1) * 8
    keys = jax.random.split(jax.random.key(0), crops)
    crop = jax.jit(jax.vmap(partial(random_crop, smallest=0.5), (0, None)))
    found = np.asarray(crop(keys, jnp.asarray(ramp, jnp.uint8))) / 8
    inner = found[:, 4:-4, 4:-4, :2]
    down = np.diff(inner[..., 0], axis=1)
    across = np.diff(inner[..., 1], axis=2)
    side = down.mean(axis=(1, 2))  # the side of the square, relative to the picture
    np.testing.assert_allclose(down, np.broadcast_to(side[:, None, None], down.shape), atol=1e-4)
    mirrored = across.mean(axis=(1, 2)) < 0
    np.testing.assert_allclose(np.abs(across.mean(axis=(1, 2))), side, atol=1e-4)
    assert (side > 0.5 - 1e-4).all() and (side < 1 + 1e-4).all() and np.ptp(side) > 0.45
    assert 0.3 < mirrored.mean() < 0.7
    assert (found >= -1e-4).all() and (found <= size - 1 + 1e-4).all()
    first = found[:, 16, 16, 0] - side / 2  # the middle of the square
    room = (1 - side) * size / 2  # on either side of the picture's middle
    assert (np.abs(first - (size - 1) / 2) <= room + 0.01).all()
    assert np.abs(first - (size - 1) / 2).max() > 4
    whole = np.asarray(crop(keys[:8], jnp.asarray(ramp, jnp.uint8)))
    np.testing.assert_array_equal(whole, np.float32(found[:8] * 8))  # of the same keys


def test_a_crop_of_the_whole_is_the_picture_or_its_mirror():
    picture = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    kinds, crop = set(), jax.jit(partial(random_crop, smallest=1.0))
    for seed in range(6):
        found = np.asarray(crop(jax.random.key(seed), jnp.asarray(picture)))
        expected = picture[:, ::-1] if abs(found - picture).max() > 1 else picture
        np.testing.assert_allclose(found, expected, atol=1e-3)
        kinds.add(expected is picture)
    assert kinds == {True, False}


@pytest.mark.parametrize(("kind", "first"), [("clip", 1), ("siglip", 0)])
def test_patches_that_are_left_out_change_no_other(monkeypatch, kind, first):
    """Without the layers, each kept state is one of the states of the whole picture."""
    monkeypatch.setattr(vision, "run_blocks", lambda stack, states, mask, **_: states)
    base, params = image_base(kind), {"params": read_parameters(kind)["image_base"]}
    pixels = np.random.default_rng(0).normal(size=(6, 24, 24, 3)).astype(np.float32)
    rngs = {"dropout": jax.random.key(0)}

    def encode(left_out):
        return VisionTransformer(base).apply(params, pixels, True, left_out=left_out, rngs=rngs)

    own = slice(1 - first, None)  # SigLIP's vector is pooled of all patches
    whole, kept = jax.jit(lambda: (encode(0.0)[:, own], encode(0.5)[:, own]))()
    whole, kept = np.asarray(whole), np.asarray(kept)
    assert kept.shape[1] == first + base.patches // 2
    picked = set()
    for all_states, states in zip(whole, kept, strict=True):
        distance = np.abs(states[:, None] - all_states[None]).max(axis=-1)
        rows = distance.argmin(axis=1)
        np.testing.assert_allclose(distance.min(axis=1), 0, atol=1e-6)
        assert (np.diff(rows) > 0).all() and (not first or rows[0] == 0)
        picked.add(tuple(rows))
    assert len(picked) > 1  # each picture has patches of its own
    least = jax.eval_shape(lambda: encode(0.99))
    assert least.shape[1] == 2 if first else 1 + 1


@pytest.mark.slow
def test_one_device_and_four_crop_and_leave_out_the_same():
    """The loss and the gradient do not depend on the devices."""

    def make_cell(axis_name=None, **fields):
        config = tiny_config("infonce", "vse")
        config.model.image_encoder, config.model.region_mask = "clip", fields.get("mask", 0.4)
        config.data.pixel_crop, config.optim.image_rate = fields.get("crop", 0.5), 1.0
        model = make_model(config, grid.VOCABULARY, axis_name, Bases(image=image_base()))
        method = make_method(model, config)
        stream = grid.stream({"sample": np.arange(len(pairs()))}, 0)
        sample = with_pixels(next(stream)["sample"])
        state = jax.eval_shape(partial(grid.start, method), jax.random.key(0), sample)
        return grid.Cell(method, state, sample)

    def with_pixels(batch):
        shape = (len(batch.images), 24, 24, 3)
        pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        return batch._replace(images=pixels, regions=np.ones(len(pixels), np.int32))

    cell = make_cell()
    batch = {name: with_pixels(each) for name, each in next(batches(cell, MAIN)).items()}
    state = grid.start(cell.method, jax.random.key(0), cell.sample)
    mapped, found = make_cell(AXIS).method, {}
    for devices in (1, 4):
        replicas = Replicas(jax.devices()[:devices])
        shards = {name: replicas.shard(each) for name, each in batch.items()}
        after, values = jax.device_get(replicas.map(mapped.step)(replicas.replicate(state), shards))
        old, new = (each.params["image_base"]["positions"] for each in (state, after))
        assert (new != old).any()
        found[devices] = {name: float(x) for name, x in values.items()}
    assert found[4] == pytest.approx(found[1], rel=1e-5)
    for fields in ({"crop": 0.0}, {"mask": 0.0}):
        _, values = jax.jit(make_cell(**fields).method.step)(state, batch)
        assert float(values["loss"]) != pytest.approx(found[1]["loss"], rel=1e-4)
