"""Heads against plain loops over pairs, and with other order and padding.

`tests/test_golden.py` compares OMIT, CAM and VSE with arrays of the authors' code. The tests here
cover what these arrays lack: the loops of CAM from images to texts and of IMRAM follow the public
code of their authors, whose own arrays we do not have.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError
from l2rm_jax.models import HEADS, make_model
from l2rm_jax.models.cam import CAM
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.imram import IMRAM
from l2rm_jax.models.omit import MARGINS, MATCHINGS, OMIT
from l2rm_jax.models.pem import PEM, Gaussian
from l2rm_jax.models.vse import VSE
from tests.models.test_alignment import EPSILON, cam_i2t_pair, imram_pair, omit_plan

IMAGES, TEXTS, DIM = 4, 5, 6
REGIONS, WORDS = np.array([3, 5, 1, 4]), np.array([2, 6, 4, 1, 3])

CASES = {
    "omit-inter": OMIT("partial", "inter", EPSILON, chunk=2),
    "omit-norm": OMIT("prompt", "norm", EPSILON, chunk=1),
    "cam": CAM("partial", chunk=2),
    "vse": VSE("gpo"),
    "pem": PEM(),
}


def vectors(rng, counts, width):
    """Unit vectors with their mask and their norms before scaling; zero in the padding."""
    mask = (np.arange(width) < counts[:, None]).astype(np.float32)
    raw = rng.normal(size=(len(counts), width, DIM)) + 0.5
    norms = np.linalg.norm(raw, axis=-1)
    parts = raw / norms[..., None] * mask[..., None], mask, None, norms * mask
    return [None if part is None else np.float32(part) for part in parts]


def with_products(images: ImageCode) -> ImageCode:
    return images.replace(products=region_products(images.regions))


RNG = np.random.default_rng(0)
CODES = with_products(ImageCode(*vectors(RNG, REGIONS, 5))), TextCode(*vectors(RNG, WORDS, 6))


def reordered(code):
    """The regions of each image, or the words of each caption, in another order."""
    counts = code.mask.sum(1).astype(int)
    orders = [np.r_[RNG.permutation(n), n : code.mask.shape[1]] for n in counts]
    take = [np.stack([row[order] for row, order in zip(x, orders, strict=True)])
            for x in jax.tree.leaves(code)]  # fmt: skip
    code = jax.tree.unflatten(jax.tree.structure(code), take)
    return with_products(code) if isinstance(code, ImageCode) else code


def random_variables(head):
    shapes = jax.eval_shape(lambda: head.init(jax.random.key(0), *CODES, True))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)


def apply(head, variables, *inputs, **how):
    return jax.jit(lambda *x: head.apply(*x, **how))(variables, *inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_order_and_padding_change_nothing(name):
    """Padding gets no NaN gradients; the comparisons with single pairs cover its similarities."""
    head = CASES[name]
    variables = random_variables(head)
    weights = np.random.default_rng(1).normal(size=(IMAGES, TEXTS)).astype(np.float32)

    @jax.jit
    def run(images, texts):
        def loss(images, texts):
            sims = head.apply(variables, images, texts, True)
            return jnp.sum(weights * sims), sims

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(images, texts)

    (image_grads, text_grads), sims = run(*CODES)
    assert sims.shape == (IMAGES, TEXTS) and np.unique(sims).size == sims.size
    np.testing.assert_allclose(run(*map(reordered, CODES))[1], sims, atol=1e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((image_grads, text_grads)))
    assert (
        image_grads.regions[CODES[0].mask > 0].any() and text_grads.words[CODES[1].mask > 0].any()
    )


def items(code, i):
    """The vectors and norms of image or caption i, in float64, without padding."""
    vectors = code.regions if isinstance(code, ImageCode) else code.words
    count = int(code.mask[i].sum())
    return np.float64(vectors[i, :count]), np.float64(code.norms[i, :count])


def omit_scores(*settings):
    """OMIT's score of each image with each caption, in a loop."""
    images, texts = CODES
    return [[omit_plan(*items(images, i), *items(texts, j), *settings)[0] for j in range(TEXTS)]
            for i in range(IMAGES)]  # fmt: skip


@pytest.mark.parametrize(
    ("matching", "margins"),
    [(matching, "uniform") for matching in MATCHINGS]
    + [("partial", margins) for margins in MARGINS[1:]]
    + [("naive", "inter")],
)
def test_omit_pair_by_pair(matching, margins):
    head = OMIT(matching, margins, EPSILON, chunk=1)
    variables = random_variables(head)
    bins = None
    if matching == "prompt":
        learned = np.float64(variables["params"]["dustbins"])
        bins = learned / np.linalg.norm(learned, axis=1, keepdims=True)
    sims = apply(head, variables, *CODES, train=False)
    expected = omit_scores(matching, margins, bins)
    np.testing.assert_allclose(sims, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("margins", MARGINS)
def test_omit_with_the_first_word_as_dustbin(margins):
    head = OMIT("partial", margins, EPSILON, "first")
    sims = apply(head, {}, *CODES, train=False)
    expected = omit_scores("partial", margins, None, True)
    np.testing.assert_allclose(sims, expected, rtol=1e-4, atol=1e-6)
    mean = omit_scores("partial", margins)
    assert np.abs(np.subtract(expected, mean)).max() > 1e-3


@pytest.mark.parametrize(
    ("head", "pair"),
    [
        (CAM("naive", "i2t", chunk=TEXTS), partial(cam_i2t_pair, dustbin=False)),
        (IMRAM(3, 9.0, chunk=TEXTS), imram_pair),
    ],
    ids=["cam-i2t", "imram"],
)
def test_gradients_are_the_differences_of_the_loops(head, pair):
    """In a random direction, padding included, of a random sum of the scores; in float64."""
    rng = np.random.default_rng(3)
    weights = rng.normal(size=(IMAGES, TEXTS))
    images, texts = jax.tree.map(np.float64, CODES)
    point = random_variables(head).get("params", {}), images.regions, texts.words
    point = jax.tree.map(np.float64, point)
    direction = jax.tree.map(lambda x: rng.normal(size=x.shape), point)

    def loss(params, regions, words):
        codes = with_products(images.replace(regions=regions)), texts.replace(words=words)
        return jnp.sum(weights * head.apply({"params": params}, *codes, True))

    def by_loop(step):
        params, regions, words = jax.tree.map(lambda x, y: x + step * y, point, direction)
        return sum(
            weights[i, j] * pair({"params": params}, regions[i, :r], words[j, :w], None, None)[0]
            for i, r in enumerate(REGIONS)
            for j, w in enumerate(WORDS)
        )

    with jax.enable_x64(True):
        gradients = jax.jit(jax.grad(loss, (0, 1, 2)))(*point)
    products = jax.tree.map(lambda x, y: np.sum(np.asarray(x) * y), gradients, direction)
    found, step = sum(jax.tree.leaves(products)), 1e-5
    np.testing.assert_allclose(found, (by_loop(step) - by_loop(-step)) / (2 * step), rtol=1e-6)


def test_generalised_pooling_lies_between_mean_and_maximum():
    head = VSE("gpo")
    variables = random_variables(head)
    embed = jax.jit(lambda variables: head.apply(variables, CODES[0], method="embed_images"))

    def expected(pool):
        pooled = np.array([pool(items(CODES[0], i)[0]) for i in range(IMAGES)])
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    # Scores that do not depend on the position give all ranks the same weight.
    even = jax.tree.map(jnp.zeros_like, variables)
    np.testing.assert_allclose(embed(even), expected(lambda x: x.mean(0)), atol=1e-5)
    # Very large scores give all weight to one rank.
    pooling = variables["params"]["image_pooling"]
    scale = 1e4 * jnp.sign(jax.random.normal(jax.random.key(1), pooling["score"].shape))
    sharp = {"params": {**variables["params"], "image_pooling": {**pooling, "score": scale}}}
    ranked = [expected(lambda x, k=k: np.sort(x, 0)[::-1][min(k, len(x) - 1)]) for k in range(5)]
    distance = [np.abs(embed(sharp) - each).max(1) for each in ranked]
    assert (np.min(distance, axis=0) < 1e-4).all()


def test_pem_is_the_wasserstein_distance():
    """Two Gaussians: |m - m'|^2 + tr(S + S' - 2 (S S')^(1/2)), with diagonal covariances S."""
    head = PEM()
    variables = random_variables(head)
    images, texts = CODES

    def gaussians(name, x, mask):
        vector = apply(Gaussian(), {"params": variables["params"][name]}, x, mask)
        mean, deviation = np.split(np.float64(vector), 2, axis=1)
        return mean, (deviation + 1) ** 2

    m, s = gaussians("image", images.regions, images.mask)
    n, z = gaussians("text", texts.words, texts.mask)
    squared = np.sum((m[:, None] - n) ** 2, -1) + np.sum(
        s[:, None] + z - 2 * np.sqrt(s[:, None] * z), -1
    )
    sims = apply(head, variables, *CODES, train=False)
    np.testing.assert_allclose(sims, -np.sqrt(squared), rtol=1e-4)
    means = np.float64(images.regions).sum(1)
    np.testing.assert_allclose(m, means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-5)
    assert (s > 0).all() and np.unique(s).size == s.size


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model.head", "sgn"),
        ("model.matching", "half"),
        ("model.margins", "even"),
        ("model.pooling", "max"),
        ("cam.direction", "i-t"),
        ("model.matching", "prompt"),  # which omit alone has
    ],
)
def test_unknown_names_are_refused(field, value):
    config = defaults.default()
    config.update_from_flattened_dict({"model.head": "cam", field: value})
    with pytest.raises(ConfigError, match=f"{field}: .*{value}"):
        make_model(config, vocabulary_size=9)


@pytest.mark.parametrize("head", HEADS)
def test_region_mask_is_refused_where_positions_are_normalised_separately(head):
    config = defaults.default()
    config.model.head, config.model.region_mask = head, 0.4
    if head not in ("sgr", "saf", "linear", "de"):
        assert make_model(config, vocabulary_size=9).config.model.region_mask == 0.4
        return
    with pytest.raises(ConfigError, match=r"region_mask: found 0\.4"):
        make_model(config, vocabulary_size=9)
