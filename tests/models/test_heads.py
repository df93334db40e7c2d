"""Heads against plain loops over pairs, and with other order and padding.

`tests/test_golden.py` compares OMIT, CAM and VSE with arrays of the authors' code. The tests here
cover what these arrays lack: the loops of CAM from images to texts and of IMRAM follow the public
code of their authors, whose own arrays we do not have.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError
from l2rm_jax.models import HEADS, make_model
from l2rm_jax.models.cam import CAM
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.head import make_head
from l2rm_jax.models.imram import IMRAM
from l2rm_jax.models.omit import MARGINS, MATCHINGS, OMIT
from l2rm_jax.models.pem import PEM, Gaussian
from l2rm_jax.models.vse import VSE
from l2rm_jax.run.validate_config import check_fields

IMAGES, TEXTS, DIM = 4, 5, 6
REGIONS, WORDS = np.array([3, 5, 1, 4]), np.array([2, 6, 4, 1, 3])
EPSILON = 0.1

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


def score_pairs(score, *settings):
    """`score` of each image with each caption, in a loop."""
    images, texts = CODES
    return [[score(*items(images, i), *items(texts, j), *settings) for j in range(TEXTS)]
            for i in range(IMAGES)]  # fmt: skip


def omit_score(v, v_norms, t, t_norms, matching, margins, bins=None, first=False):
    """OMIT Eq. 3 to 5 and 7 for one pair."""
    mean_v, mean_t = v.mean(0), t.mean(0)
    alpha, beta = {
        "uniform": (np.ones(len(v)), np.ones(len(t))),
        "intra": (np.exp(v @ mean_v), np.exp(t @ mean_t)),
        "inter": (np.exp(v @ mean_t), np.exp(t @ mean_v)),
        "norm": (v_norms, t_norms),
    }[margins]
    alpha, beta = alpha / alpha.sum(), beta / beta.sum()
    if matching != "naive":
        bin_v, bin_t = (mean_v, t[0] if first else mean_t) if bins is None else bins
        v, t = np.vstack([bin_v, v]), np.vstack([bin_t, t])
        alpha, beta = (np.append(1, len(x) * x) / (len(x) + 1) for x in (alpha, beta))
    plan = np.exp(-(1 - v @ t.T) / EPSILON)
    for _ in range(3):
        plan = plan * (alpha / plan.sum(1))[:, None]
        plan = plan * (beta / plan.sum(0))[None]
    moved = plan * (v @ t.T)
    return (moved[1:, 1:] if matching in ("partial", "prompt") else moved).sum()


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
    expected = score_pairs(omit_score, matching, margins, bins)
    np.testing.assert_allclose(sims, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("margins", MARGINS)
def test_omit_with_the_first_word_as_dustbin(margins):
    head = OMIT("partial", margins, EPSILON, "first")
    sims = apply(head, {}, *CODES, train=False)
    expected = score_pairs(omit_score, "partial", margins, None, True)
    np.testing.assert_allclose(sims, expected, rtol=1e-4, atol=1e-6)
    mean = score_pairs(omit_score, "partial", margins)
    assert np.abs(np.subtract(expected, mean)).max() > 1e-3


@pytest.mark.parametrize("matching", ["partial", "naive"])
def test_plans_behind_omit_s_similarities(matching):
    head = OMIT(matching, "uniform", EPSILON, chunk=2)
    plans = np.asarray(apply(head, {}, *CODES, method="plans"))
    images, texts = CODES
    items = images.mask[None, :, :, None] * texts.mask[:, None, None, :]
    assert not plans[:, :, 1:, 1:][items == 0].any()
    dustbin = float(matching == "partial")
    words = texts.mask / (dustbin + texts.mask.sum(1, keepdims=True))
    np.testing.assert_allclose(plans.sum(2)[:, :, 1:], words[:, None].repeat(IMAGES, 1), atol=1e-6)
    assert (plans[:, :, 0, 0] > 0).all() == bool(dustbin)
    sims = np.einsum("ird,jld->jirl", images.regions, texts.words)
    moved = np.sum(plans[:, :, 1:, 1:] * sims, (2, 3)).T
    np.testing.assert_allclose(moved, apply(head, {}, *CODES, train=False), atol=1e-5)


def attended(sources, queries, smoothing):
    """SCAN's attention of each query over the sources [sources, queries], with a sum of 1."""
    scores = sources @ queries.T
    scores = np.where(scores > 0, scores, 0.1 * scores)
    scores = scores / (np.linalg.norm(scores, axis=1, keepdims=True) + 1e-8)
    weights = np.exp(smoothing * scores)
    return weights / weights.sum(0)


def cam_score(v, _, t, __, partial, direction):
    """SCAN, word by word; if `partial`, with a mean vector that does not count."""
    if direction == "i2t":
        v, t = t, v
    sources = np.vstack([v.mean(0), v]) if partial else v
    weights = attended(sources, t, {"t2i": 9, "i2t": 4}[direction])
    answers = []
    for word, weight in zip(t, weights.T, strict=True):
        mixture = weight @ sources
        counted = weight[1:] @ v if partial else mixture
        answers.append(counted @ word / np.linalg.norm(mixture))
    return np.mean(answers)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("matching", ["naive", "partial"])
def test_cam_pair_by_pair(matching, direction):
    sims = apply(CAM(matching, direction, chunk=1), {}, *CODES, train=False)
    expected = score_pairs(cam_score, matching == "partial", direction)
    np.testing.assert_allclose(sims, expected, rtol=1e-4, atol=1e-6)


def imram_score(v, _, t, __, rounds, smoothing, params):
    """The public code's loop, round by round; its layers take a query and the attended vectors."""
    query, score = t, 0.0
    for _ in range(rounds):
        found = attended(v, query, smoothing).T @ v
        score += np.mean((found * t).sum(1) / np.linalg.norm(found, axis=1))  # words have norm 1
        both = np.hstack([query, found])
        gate, new = (both @ params[x]["kernel"] + params[x]["bias"] for x in ("gate", "update"))
        gate = 1 / (1 + np.exp(-gate))
        query = gate * query + (1 - gate) * np.tanh(new)
    return score


@pytest.mark.parametrize(("rounds", "smoothing"), [(2, 9.0), (3, 11.0)])
def test_imram_pair_by_pair(rounds, smoothing):
    head = IMRAM(rounds, smoothing, chunk=1)
    variables = random_variables(head)
    params = jax.tree.map(np.float64, variables["params"])
    sims = apply(head, variables, *CODES, train=False)
    expected = score_pairs(imram_score, rounds, smoothing, params)
    np.testing.assert_allclose(sims, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("head", "score", "settings"),
    [
        (CAM("naive", "i2t", chunk=TEXTS), cam_score, (False, "i2t")),
        (IMRAM(3, 11.0, chunk=TEXTS), imram_score, (3, 11.0)),
    ],
    ids=["cam-i2t", "imram"],
)
def test_gradients_are_the_differences_of_the_loops(head, score, settings):
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
        more = (params,) if params else ()
        return sum(
            weights[i, j] * score(regions[i, :r], None, words[j, :w], None, *settings, *more)
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


def test_vse_is_one_product():
    head = VSE("mean")
    variables = random_variables(head)
    images = apply(head, variables, CODES[0], method="embed_images")
    texts = apply(head, variables, CODES[1], method="embed_texts")
    assert images.shape == (IMAGES, DIM) and texts.shape == (TEXTS, DIM)
    for x in (images, texts):
        np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(
        apply(head, variables, *CODES, train=False), images @ texts.T, atol=1e-6
    )


def test_pem_is_the_wasserstein_distance():
    """Equal |m - m'|^2 + tr(S + S' - 2 (S S')^(1/2)) for Gaussians with diagonal covariances S."""
    head = PEM()
    variables = random_variables(head)
    images, texts = CODES

    def gaussians(name, x, mask):
        vector = Gaussian().apply({"params": variables["params"][name]}, x, mask)
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


@pytest.mark.parametrize("head", HEADS)
def test_only_the_heads_that_use_global_vectors_have_them(head):
    config = defaults.default()
    config.model.head = head
    model = make_model(config, vocabulary_size=9)
    inputs = np.zeros((2, 3, 4), np.float32), np.zeros((2, 5), np.int32), np.full(2, 5)
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    has_attention = "attention" in shapes["params"]["image_encoder"]
    assert has_attention == make_head(config).needs_global_vectors


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("head", "sgn", ", ".join(HEADS)),
        ("matching", "half", "partial, naive, full, prompt"),
        ("margins", "even", "uniform, intra, inter, norm"),
        ("pooling", "max", "mean, lse, gpo"),
    ],
)
def test_unknown_names_are_refused(field, value, expected):
    config = defaults.default()
    config.model[field] = value
    with pytest.raises(ConfigError, match=rf"model\.{field}: '{value}' is none of {expected}"):
        make_model(config, vocabulary_size=9)


def test_an_unknown_direction_is_refused():
    config = defaults.default()
    config.cam.direction = "i-t"
    with pytest.raises(ConfigError, match=r"cam\.direction: 'i-t' is none of t2i, i2t"):
        make_model(config, vocabulary_size=9)


def test_cam_refuses_a_matching_that_only_omit_has():
    config = defaults.default()
    config.model.head, config.model.matching = "cam", "prompt"
    with pytest.raises(ConfigError, match="'prompt' is none of partial, naive"):
        make_model(config, vocabulary_size=9)


@pytest.mark.parametrize("head", HEADS)
def test_region_mask_is_refused_where_positions_are_normalised_separately(head):
    config = defaults.default()
    config.model.head, config.model.region_mask = head, 0.4
    if head not in ("sgr", "saf", "linear", "de"):
        assert make_model(config, vocabulary_size=9).config.model.region_mask == 0.4
        return
    with pytest.raises(
        ConfigError, match=rf"region_mask: found 0\.4, expected 0 with model\.head={head}"
    ):
        make_model(config, vocabulary_size=9)


@pytest.mark.parametrize(
    ("field", "value"), [("region_mask", 1.0), ("word_noise", -0.1), ("match_epsilon", 0.0)]
)
def test_shares_out_of_range_are_refused(field, value):
    config = defaults.default()
    config.model[field] = value
    with pytest.raises(ConfigError, match=rf"model\.{field}: {value}"):
        check_fields(config)
