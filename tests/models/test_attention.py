"""How many captions meet all images at once; what they compute is pinned by the golden arrays."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models.attention import (
    captions_at_once,
    mix_regions,
    squared_difference,
    widths,
)
from l2rm_jax.models.cam import CAM
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import l2_normalise
from l2rm_jax.models.omit import OMIT
from l2rm_jax.models.saf import SAF
from l2rm_jax.models.sgr import SGR

REGIONS = jax.ShapeDtypeStruct((10, 36, 64), "float32")
WORDS = jax.ShapeDtypeStruct((12, 8, 64), "float32")
CAPTION = 6 * 10 * 8 * 64 * 4  # bytes that one caption takes with all images


def accelerator(memory: int | None) -> SimpleNamespace:
    stats = None if memory is None else {"bytes_limit": memory}
    return SimpleNamespace(platform="gpu", memory_stats=lambda: stats)


@pytest.mark.parametrize(
    ("memory", "expected"), [(16 * 6 * CAPTION, 6), (16 * 99 * CAPTION, 12), (1, 1), (None, 12)]
)
def test_an_accelerator_takes_the_captions_that_its_memory_holds(memory, expected):
    assert captions_at_once(0, REGIONS, WORDS, accelerator(memory)) == expected


@pytest.mark.parametrize(
    ("captions", "held", "expected"),
    [(128, 112, 64), (128, 19, 16), (100, 49, 25), (127, 112, 112)],
)
def test_an_accelerator_takes_parts_of_one_size_where_there_are_some(captions, held, expected):
    words = jax.ShapeDtypeStruct((captions, 8, 64), "float32")
    device = accelerator(16 * held * CAPTION)
    assert captions_at_once(0, REGIONS, words, device) == expected


def test_two_on_a_cpu_and_what_is_asked_for_anywhere():
    assert captions_at_once(0, REGIONS, WORDS) == 2
    for device in (None, accelerator(1)):
        assert captions_at_once(7, REGIONS, WORDS, device) == 7


@pytest.mark.parametrize(
    ("length", "expected"), [(1, [1]), (5, [4, 5]), (8, [4, 8]), (20, [12, 16, 20])]
)
def test_widths(length, expected):
    assert widths(length) == expected


PLAIN = {
    "mix": (mix_regions, lambda w, x: jnp.einsum("ircl,ird->icld", w, x), "ircl", "ird"),
    "difference": (squared_difference, lambda x, y: (x - y) ** 2, "icld", "cld"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_gradients_written_by_hand_are_those_of_the_plain_form(name):
    ours, plain, *axes = PLAIN[name]
    sizes = {"i": 3, "c": 2, "l": 5, "r": 4, "d": 6}
    keys = jax.random.split(jax.random.key(0), 3)
    inputs = [
        jax.random.normal(key, [sizes[axis] for axis in each])
        for key, each in zip(keys, axes, strict=False)
    ]
    expected, pull_plain = jax.vjp(plain, *inputs)
    found, pull = jax.vjp(ours, *inputs)
    np.testing.assert_array_equal(found, expected)
    slopes = jax.random.normal(keys[-1], found.shape)
    for gradient, reference in zip(pull(slopes), pull_plain(slopes), strict=True):
        np.testing.assert_allclose(gradient, reference, rtol=1e-5, atol=1e-6)


HEADS = {
    "sgr": lambda chunk: SGR(6, 2, chunk),
    "saf": lambda chunk: SAF(6, chunk),
    "cam": lambda chunk: CAM("partial", chunk),
    "omit": lambda chunk: OMIT("prompt", "norm", 0.02, chunk),
}


def code(kind: type, rng: np.random.Generator, counts: list[int], width: int):
    """Unit vectors of a few regions or words, zero after the last."""
    mask = np.arange(width) < np.array(counts)[:, None]
    raw = rng.normal(size=(*mask.shape, 8)) * mask[..., None]
    overall = l2_normalise(rng.normal(size=(len(counts), 8)))
    norms = np.linalg.norm(raw, axis=-1)
    return jax.tree.map(jnp.float32, kind(l2_normalise(raw), mask, overall, norms))


@pytest.mark.parametrize("head", HEADS)
def test_scores_and_gradients_do_not_depend_on_the_captions_at_once(head):
    """Of 7 captions: two or three, each padded to what it needs and fewer in the last, or all."""
    rng = np.random.default_rng(0)
    images = code(ImageCode, rng, [3, 5, 1, 4], 5)
    texts = code(TextCode, rng, [2, 6, 1, 3, 6, 4, 5], 6)
    variables = HEADS[head](1).init(jax.random.key(0), images, texts, True)
    weights = rng.normal(size=(4, 7))

    def run(chunk):
        def loss(params, images, texts):
            applied = {**variables, "params": params}
            sims, updated = HEADS[head](chunk).apply(
                applied, images, texts, True, mutable=["batch_stats"]
            )
            return jnp.sum(sims * weights), (sims, updated)

        gradient = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
        return jax.jit(gradient)(variables.get("params", {}), images, texts)

    expected = run(7)  # padded to the longest
    for chunk in (2, 3):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-5), run(chunk), expected
        )
