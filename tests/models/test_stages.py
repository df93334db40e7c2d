"""Scores made in stages: at the width that captions need, and without computing twice what the
stages hand on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.stages import at_least_width, bytes_of, composed, handed_on

IMAGES = ImageCode(jnp.ones((2, 3, 4)), jnp.ones((2, 3)))
KERNEL = jnp.arange(20.0).reshape(4, 5) / 10


def texts(*lengths: int) -> TextCode:
    words = np.random.default_rng(0).normal(size=(len(lengths), 8, 4))
    mask = np.arange(8) < np.array(lengths)[:, None]
    return TextCode(jnp.float32(words * mask[..., None]), jnp.float32(mask))


def products(kernel, images, texts):
    return texts.words @ kernel


def waves(kernel, images, texts, made):
    return jnp.sin(made), jnp.cos(made) * kernel.sum()


def score(kernel, images, texts, made):
    sines, cosines = made
    return jnp.einsum("clk,clk,cl->c", sines, cosines, texts.mask) * images.regions.sum()


STAGES = (products, waves, score)


def total(made_by):
    return lambda *inputs: jnp.sum(made_by(*inputs) ** 2)


@pytest.mark.parametrize("lengths", [(1, 2), (4, 3), (5, 1), (8, 8)])
def test_scores_and_gradients_are_those_of_the_stages_in_a_row(lengths):
    """In float64: slopes of millions cancel here to some thousands."""
    staged, plain = at_least_width(STAGES, (4, 6, 8)), composed(STAGES)
    with jax.enable_x64(True):
        inputs = jax.tree.map(np.float64, (KERNEL, IMAGES, texts(*lengths)))
        np.testing.assert_allclose(staged(*inputs), plain(*inputs), rtol=1e-12)
        found = jax.grad(total(staged), (0, 1, 2))(*inputs)
        expected = jax.grad(total(plain), (0, 1, 2))(*inputs)
        expected = expected[0], *(code.replace(mask=0 * code.mask) for code in expected[1:])
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-9, 1e-6), found, expected)


def test_what_is_handed_on_is_counted():
    found = handed_on(STAGES, KERNEL, IMAGES, texts(3, 8))
    assert [jax.tree.map(jnp.shape, x) for x in found] == [(2, 8, 5), ((2, 8, 5), (2, 8, 5))]
    assert bytes_of(found) == 3 * 2 * 8 * 5 * 4


@pytest.mark.parametrize(("stages", "expected"), [(STAGES, 3), ((composed(STAGES),), 4)])
def test_a_product_that_is_handed_on_is_not_computed_again(stages, expected):
    """The product, and two for its gradients; one more where it is the only stage. In a switch of
    two branches, into and out of which no compiler looks for what is computed twice."""
    gradient = jax.jit(jax.grad(total(at_least_width(stages, (4, 8))), (0, 2)))
    compiled = gradient.lower(KERNEL, IMAGES, texts(3, 8)).compile().as_text()
    assert compiled.count(" dot(") == 2 * expected
