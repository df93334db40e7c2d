"""The threshold of NAAF: one device and several, what moves it, and where it is used."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.devices.parallel import AXIS
from l2rm_jax.models import naaf_threshold as threshold
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.naaf import NAAF, _score_caption

PAIRS, REGIONS, WORDS, DIM = 8, 3, 40, 6


def codes() -> tuple[ImageCode, TextCode]:
    """Captions whose words resemble a region of their own image, but for the last ones."""
    rng = np.random.default_rng(0)

    def unit(x):
        return np.float32(x / np.linalg.norm(x, axis=-1, keepdims=True))

    regions = unit(rng.normal(size=(PAIRS, REGIONS, DIM)))
    own = regions[:, rng.integers(REGIONS, size=WORDS)]
    words = unit(own + rng.normal(size=own.shape) * 0.2)
    words[-2:] = unit(rng.normal(size=(2, WORDS, DIM)))
    lengths = np.arange(WORDS - PAIRS, WORDS)
    mask = np.float32(np.arange(WORDS) < lengths[:, None])
    image = ImageCode(regions, np.ones((PAIRS, REGIONS), np.float32))
    image = image.replace(products=region_products(regions))
    return jax.tree.map(jnp.asarray, (image, TextCode(words * mask[..., None], mask)))


def variables(value: float = 0.0) -> dict:
    both = {"threshold": jnp.float32(value), "safe_threshold": jnp.float32(0.2)}
    return {"batch_stats": both}


def train(head: NAAF, start: dict, images: ImageCode, texts: TextCode):
    return head.apply(start, images, texts, True, mutable=["batch_stats"])


@pytest.mark.parametrize("by", threshold.THRESHOLDS)
def test_two_devices_agree_with_one(by):
    images, texts = codes()
    sims, after = jax.jit(partial(train, NAAF(by)))(variables(0.1), images, texts)

    def on_device(images, texts):
        images = jax.lax.all_gather(images, AXIS, tiled=True)
        return train(NAAF(by, axis_name=AXIS), variables(0.1), images, texts)

    halves = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), (images, texts))
    parts, found = jax.pmap(on_device, AXIS, devices=jax.devices()[:2])(*halves)
    np.testing.assert_allclose(np.concatenate(list(parts), axis=1), sims, atol=1e-5)
    for name, value in after["batch_stats"].items():
        assert 0.1 < value < 1
        np.testing.assert_allclose(found["batch_stats"][name], [value] * 2, atol=1e-6)


def test_the_threshold_separates_the_draws():
    """The densities there, by normal distributions with the moments of the draws."""
    rng = np.random.default_rng(1)
    drawn = np.stack([rng.normal(0.8, 0.05, 300), rng.normal(0.3, 0.1, 300)]).astype(np.float32)
    draws = threshold.Draws(jnp.float32(300), drawn.sum(1), (drawn**2).sum(1))
    found, safe, crosses = map(float, threshold.boundary(draws))
    mean, deviation = drawn.mean(1), drawn.std(1, ddof=1)
    density = np.exp(-(((found - mean) / deviation) ** 2) / 2) / deviation
    assert crosses and mean[1] < found < mean[0]
    assert density[0] == pytest.approx(threshold.ALPHA * density[1], rel=1e-3)
    assert safe == pytest.approx(mean[0] - 3 * deviation[0], abs=1e-4)
    few = draws._replace(count=jnp.float32(threshold.FEWEST_WORDS))
    old = threshold.Thresholds(jnp.float32(0.25), jnp.float32(0.5))
    assert threshold.move(old, few) == old
    moved = threshold.move(old, draws)
    assert float(moved.threshold) == pytest.approx(0.7 * found + 0.3 * 0.25, abs=1e-6)


def test_captions_of_a_batch_have_different_thresholds_by_the_code_alone():
    images, texts = codes()
    start = threshold.Thresholds(jnp.float32(0.1), jnp.float32(0.2))
    score = partial(_score_caption, images)
    used, _ = jax.jit(lambda: threshold.by_caption(score, images, texts, start, None))()
    longest_first = np.argsort(-texts.mask.sum(1))
    used = np.asarray(used)[longest_first]
    assert used[0] == np.float32(0.1) and used[1] == 0 and used[-1] > 0.1


@pytest.mark.slow
def test_evaluation_takes_the_safe_threshold_and_training_keeps_both_where_there_are_no_pairs():
    images, texts = codes()
    one, other = (NAAF("paper").apply(variables(x), images, texts, False) for x in (0.0, 0.9))
    np.testing.assert_array_equal(one, other)
    few = jax.tree.map(lambda x: x[:4], images)
    _, after = train(NAAF("code"), variables(0.5), few, texts)
    assert after["batch_stats"]["threshold"] == 0  # fewer words are drawn than needed
    _, after = train(NAAF("paper"), variables(0.5), few, texts)
    assert after == variables(0.5)
