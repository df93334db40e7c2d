"""Padded images: rows after an image's last region must not change any result."""

from functools import partial

import flax.linen as nn
import jax
import numpy as np
import pytest

from l2rm_jax.devices.batch import Batch
from l2rm_jax.losses.ranking import triplet_mean
from l2rm_jax.models import RetrievalModel
from l2rm_jax.models.attention import attend_regions, region_word_cosines
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import BatchNorm, l2_normalise
from tests.grid import small_model

COUNTS = np.array([2, 1, 3, 3, 2, 1], np.int32)
SIZE, REGIONS, WIDER, FEATURES = len(COUNTS), 3, 5, 7


def padded(images: np.ndarray, width: int, content: float) -> np.ndarray:
    """The first `COUNTS` regions in arrays of another width, with `content` in the padding."""
    wide = np.full((SIZE, width, images.shape[2]), content, np.float32)
    for row, image, count in zip(wide, images, COUNTS, strict=True):
        row[:count] = image[:count]
    return wide


def resized(tree, width: int):
    """The same variables for `width` regions: one normalisation has a channel per region."""

    def resize(path, x):
        if "local_norm" not in jax.tree_util.keystr(path):
            return x
        return np.pad(x[:width], (0, max(0, width - len(x))), constant_values=0.5)

    return jax.tree_util.tree_map_with_path(resize, tree)


def random_variables(model: RetrievalModel, rng: np.random.Generator) -> dict:
    ones = np.ones(2, int)
    batch = Batch(np.zeros((2, REGIONS, FEATURES)), ones, np.zeros((2, 4), int), ones)
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
    variables = {
        "params": jax.tree.map(lambda x: rng.uniform(-0.5, 0.5, x.shape), shapes["params"]),
        "batch_stats": jax.tree.map(lambda x: rng.uniform(0.5, 1, x.shape), shapes["batch_stats"]),
    }
    return jax.tree.map(np.float32, variables)


def random_captions(rng: np.random.Generator) -> TextCode:
    mask = (np.arange(5) < rng.integers(1, 6, SIZE)[:, None]).astype(np.float32)
    words = rng.normal(size=(SIZE, 5, 8)) * mask[..., None]
    overall = rng.normal(size=(SIZE, 8))
    return jax.tree.map(np.float32, TextCode(l2_normalise(words), mask, l2_normalise(overall)))


@partial(jax.jit, static_argnums=0)
def run(model, variables, images, texts):
    """Similarities in both modes; loss, gradients and running averages of a step."""

    def score(model, train):
        return model.similarity(model.encode_images(Batch(images, COUNTS), train), texts, train)

    def loss(params):
        mutable = nn.apply(score, model, mutable=["batch_stats"])
        sims, updated = mutable({**variables, "params": params}, True)
        return triplet_mean(sims, margin=0.2), (sims, updated["batch_stats"])

    (value, (sims, stats)), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
    evaluated = nn.apply(score, model)(variables, False)
    outputs = {"loss": value, "train": sims, "evaluated": evaluated}
    return outputs, {"gradients": grads, "running": stats}


@pytest.mark.slow
@pytest.mark.parametrize("head", ["sgr", "saf"])
def test_padding_changes_nothing(head):
    rng = np.random.default_rng(0)
    model, texts = small_model(head, 20), random_captions(rng)
    variables = random_variables(model, rng)
    images = rng.normal(size=(SIZE, REGIONS, FEATURES)).astype(np.float32)
    expected, expected_trees = run(model, variables, images, texts)
    assert np.std(expected["train"]) > 1e-3 and np.std(expected["evaluated"]) > 1e-3
    for width, content in [(REGIONS, np.nan), (WIDER, 1e3)]:
        start = resized(variables, width)
        ours, trees = run(model, start, padded(images, width, content), texts)
        jax.tree.map(assert_close, ours, expected)
        jax.tree.map(assert_close, resized(trees, REGIONS), expected_trees)
    norm = trees["gradients"]["image_encoder"]["attention"]["local_norm"]
    assert all(not x[REGIONS:].any() and x[:REGIONS].all() for x in norm.values())
    norm = trees["running"]["image_encoder"]["attention"]["local_norm"]
    np.testing.assert_array_equal([x[REGIONS:] for x in norm.values()], 0.5)


def assert_close(ours, expected):
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=2e-6)


def test_a_padded_image_is_encoded_like_one_without_padding():
    rng = np.random.default_rng(1)
    model = small_model("sgr", 20)
    variables = random_variables(model, rng)
    encode = jax.jit(partial(model.apply, method="encode_images"))
    images = padded(rng.normal(size=(SIZE, REGIONS, FEATURES)), WIDER, np.nan)
    codes = encode(resized(variables, WIDER), Batch(images, COUNTS))
    np.testing.assert_array_equal(codes.mask.sum(1), COUNTS)
    assert not codes.regions[codes.mask == 0].any()
    for count in np.unique(COUNTS):
        some = count == COUNTS
        alone = encode(resized(variables, count), Batch(images[some, :count], COUNTS[some]))
        assert_close(codes.regions[some, :count], alone.regions)
        assert_close(codes.overall[some], alone.overall)


def attention(regions: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Stacked cross attention of one image and one caption, in NumPy."""
    scores = regions @ words.T
    scores = np.where(scores > 0, scores, 0.1 * scores)
    weights = np.exp(9 * scores / np.linalg.norm(scores, axis=1, keepdims=True))
    context = (weights / weights.sum(0)).T @ regions
    return context / np.linalg.norm(context, axis=1, keepdims=True)


@jax.jit
def attend(regions, mask, words, word_mask) -> jax.Array:
    images, texts = ImageCode(regions, mask), TextCode(words, word_mask)
    return attend_regions(region_word_cosines(images, texts), regions, mask, word_mask)


def test_attention_ignores_padding_and_the_order_of_regions():
    rng = np.random.default_rng(2)
    regions, words = rng.normal(size=(SIZE, WIDER, 4)), rng.normal(size=(2, 3, 4))
    mask = (np.arange(WIDER) < COUNTS[:, None]).astype(np.float32)
    word_mask = np.array([[1.0, 1.0, 0.0], [1.0] * 3])
    ours = attend(regions, mask, words, word_mask)
    for image, count in enumerate(COUNTS):
        assert_close(ours[image, 0, :2], attention(regions[image, :count], words[0, :2]))
        assert_close(ours[image, 1], attention(regions[image, :count], words[1]))
    order = rng.permutation(WIDER)
    assert_close(attend(regions[:, order], mask[:, order], words, word_mask), ours)


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("features", [1, 3])
def test_masked_batch_normalisation(features, devices):
    """Against NumPy, channel by channel; channel 2 has one image, on one device; 3 has none."""
    rng = np.random.default_rng(3)
    x = rng.normal(2, 3, (8, 4, features)).astype(np.float32)
    counts = np.array([1, 2, 3, 2, 1, 1, 2, 2])
    mask = (np.arange(4) < counts[:, None]).astype(np.float32)[..., None]
    start = {"mean": rng.normal(size=4), "var": rng.uniform(1, 2, 4)}
    params = {"scale": rng.uniform(1, 2, 4), "bias": rng.normal(size=4)}
    variables = {"params": params, "batch_stats": start}
    norm = BatchNorm(1, "devices")

    def apply(x, mask):
        return norm.apply(variables, x, True, mask, mutable=["batch_stats"])

    mapped = jax.pmap(apply, "devices", devices=jax.devices()[:devices])
    shards = [y.reshape(devices, -1, *y.shape[1:]) for y in (x, mask)]
    out, updated = mapped(*shards)
    out, after = out.reshape(x.shape), jax.tree.map(lambda y: y[0], updated["batch_stats"])
    assert np.isfinite(out).all()
    for channel in range(3):
        real = mask[:, channel, 0] > 0
        values = x[real, channel]
        unbiased = values.var(ddof=1) if values.size > 1 else 0.0
        mean = 0.9 * start["mean"][channel] + 0.1 * values.mean()
        var = 0.9 * start["var"][channel] + 0.1 * unbiased
        assert_close([after["mean"][channel], after["var"][channel]], [mean, var])
        expected = (values - values.mean()) / np.sqrt(values.var() + 1e-5)
        expected = expected * params["scale"][channel] + params["bias"][channel]
        assert_close(out[real, channel], expected)
    assert_close([after["mean"][3], after["var"][3]], [start["mean"][3], start["var"][3]])


def test_attended_vector_has_unit_length_even_for_a_negative_cosine():
    region, word = np.array([[[1.0, 0.0]]], np.float32), np.array([[[-1.0, 0.0]]], np.float32)
    mask = np.ones((1, 1), np.float32)
    attended = attend(region, mask, word, mask)
    np.testing.assert_allclose(attended[0, 0, 0], [1.0, 0.0], rtol=1e-6)
