"""Weights of regions with words: against a plain loop over pairs, which also computes the scores.

The loop reads its weights off the numbers that its score is computed from. So where both its scores
and its weights agree with a head's, the weights are those that the head scores with.
"""

import jax
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.devices.batch import Batch
from l2rm_jax.models import HEADS, make_model
from l2rm_jax.models.cam import CAM
from l2rm_jax.models.chan import CHAN
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.imram import IMRAM
from l2rm_jax.models.naaf import NAAF
from l2rm_jax.models.omit import OMIT
from l2rm_jax.models.saf import SAF
from l2rm_jax.models.sgr import SGR
from tests import tiny

PAIRS, DIM, SIM_DIM, STEPS, EPSILON = 4, 6, 5, 3, 0.1
REGIONS, WORDS = np.array([3, 5, 1, 4]), np.array([2, 6, 4, 1])


def make_codes() -> tuple[ImageCode, TextCode]:
    """Unit vectors, which are zero in the padding."""
    rng = np.random.default_rng(0)

    def unit(*shape):
        x = rng.normal(size=shape) + 0.3
        return np.float32(x / np.linalg.norm(x, axis=-1, keepdims=True))

    parts = []
    for counts in (REGIONS, WORDS):
        mask = np.float32(np.arange(counts.max()) < counts[:, None])
        vectors = unit(PAIRS, counts.max(), DIM) * mask[..., None]
        parts.append((vectors, mask, unit(PAIRS, DIM), rng.uniform(1, 2, mask.shape) * mask))
    return ImageCode(*parts[0], region_products(parts[0][0])), TextCode(*parts[1])


CODES = make_codes()


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def linear(params, x):
    return x @ params["kernel"] + params.get("bias", 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def attention(v, t, smoothing=9):
    """SCAN's attention of each word over the regions [R, L], before it is scaled to a sum of 1."""
    cosines = v @ t.T
    return np.exp(smoothing * unit(np.where(cosines > 0, cosines, 0.1 * cosines)))


def alignment_vectors(params, v, t, whole_v, whole_t):
    """The alignment vectors of SGRAF, the global one first, and the attention of the words."""
    shares = attention(v, t) / attention(v, t).sum(0)
    local = linear(params["local"], (unit(shares.T @ v) - t) ** 2)
    whole = linear(params["overall"], (whole_v - whole_t) ** 2)
    return unit(np.vstack([whole, local])), shares


def cam_pair(variables, v, t, whole_v, whole_t, *, dustbin, smoothing=9):
    weights, mean = attention(v, t, smoothing), v.mean(0)
    mean_weight = attention(mean[None], t, smoothing)[0] if dustbin else 0
    mixtures = weights.T @ v + np.outer(mean_weight, mean) if dustbin else weights.T @ v
    score = ((weights.T @ v) * t).sum(1) / np.linalg.norm(mixtures, axis=1)
    return score.mean(), weights / (weights.sum(0) + mean_weight) / len(t)


def cam_i2t_pair(variables, v, t, *others, dustbin):
    score, shares = cam_pair(variables, t, v, *others, dustbin=dustbin, smoothing=4)
    return score, shares.T


def imram_pair(variables, v, t, whole_v, whole_t):
    params, query, scores, shares = variables["params"], t, [], []
    for _ in range(3):
        shares.append(softmax(np.log(attention(v, query)).T).T)
        found = shares[-1].T @ v
        scores.append((unit(found) * t).sum(1).mean())
        both = np.hstack([query, found])
        gate = sigmoid(linear(params["gate"], both))
        query = gate * query + (1 - gate) * np.tanh(linear(params["update"], both))
    return sum(scores), sum(shares) / 3 / len(t)


def chan_pair(variables, v, t, *others, pooling):
    cosines = v @ t.T
    best = cosines.max(0)
    if pooling == "mean":
        score, weights = best.mean(), np.full(len(t), 1 / len(t))
    else:
        score, weights = np.log(np.exp(10 * best).sum()), softmax(10 * best)
    return score, (cosines == best) * weights


def naaf_pair(variables, v, t, *others):
    cosines, threshold = v @ t.T, variables["batch_stats"]["safe_threshold"]
    weights = np.where(cosines > threshold, np.exp(20 * (cosines - threshold)), 0)
    weights /= weights.sum(0) + 1e-8
    relevance = attention(v, t, 20) / attention(v, t, 20).sum(0)
    above = cosines.max(0) - threshold
    mismatch = np.where(softmax(5 * t @ t.T) @ above < 0, above, 0)
    mixed = weights.T @ v
    features = (mixed * t).sum(1) / np.maximum(np.linalg.norm(mixed, axis=1), 1e-8)
    score = (mismatch + features + (relevance * cosines).sum(0)).mean()
    return score, (weights + relevance) / 2 / len(t)


def saf_pair(variables, *pair):
    params, running = variables["params"], variables["batch_stats"]
    vectors, shares = alignment_vectors(params, *pair)
    logits = linear(params["gate"], vectors)[:, 0]
    logits = (logits - running["mean"]) / np.sqrt(running["var"] + 1e-5)
    gates = sigmoid(params["gate_scale"] * logits + params["gate_shift"])
    gates /= gates.sum()
    return sigmoid(linear(params["score"], unit(gates @ vectors)))[0], shares * gates[1:]


def sgr_pair(variables, *pair):
    params = variables["params"]
    nodes, shares = alignment_vectors(params, *pair)
    for step in range(STEPS):
        graph = params[f"graph_{step}"]
        edges = softmax(linear(graph["query"], nodes) @ linear(graph["key"], nodes).T)
        nodes = np.maximum(linear(graph["update"], edges @ nodes), 0)
    return sigmoid(linear(params["score"], nodes[0]))[0], shares * edges[0, 1:]


def omit_plan(v, v_norms, t, t_norms, matching, margins, bins=None, first=False):
    """OMIT Eq. 3 to 5 and 7 for one pair: its score, and the plan of its regions and words."""
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
    inner = np.s_[1:, 1:] if matching in ("partial", "prompt") else np.s_[:]
    return (plan * (v @ t.T))[inner].sum(), plan[inner]


def omit_pair(variables, v, t, whole_v, whole_t, *, matching):
    bins = unit(variables["params"]["dustbins"]) if matching == "prompt" else None
    return omit_plan(v, None, t, None, matching, "uniform", bins)


CASES = {
    "cam-naive": (CAM("naive"), cam_pair, {"dustbin": False}),
    "cam-partial": (CAM("partial"), cam_pair, {"dustbin": True}),
    "cam-i2t-naive": (CAM("naive", "i2t"), cam_i2t_pair, {"dustbin": False}),
    "cam-i2t-partial": (CAM("partial", "i2t"), cam_i2t_pair, {"dustbin": True}),
    "chan-naive": (CHAN("mean"), chan_pair, {"pooling": "mean"}),
    "chan-lse-naive": (CHAN("lse"), chan_pair, {"pooling": "lse"}),
    "naaf": (NAAF("paper"), naaf_pair, {}),
    "imram-naive": (IMRAM(3, 9.0), imram_pair, {}),
    "omit-naive": (OMIT("naive", "uniform", EPSILON), omit_pair, {"matching": "naive"}),
    "omit-partial": (OMIT("partial", "uniform", EPSILON), omit_pair, {"matching": "partial"}),
    "omit-prompt": (OMIT("prompt", "uniform", EPSILON), omit_pair, {"matching": "prompt"}),
    "saf": (SAF(SIM_DIM), saf_pair, {}),
    "sgr": (SGR(SIM_DIM, STEPS), sgr_pair, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_a_loop_over_pairs(name):
    head, pair, settings = CASES[name]
    shapes = jax.eval_shape(lambda: head.init(jax.random.key(0), *CODES, False))
    rng = np.random.default_rng(1)
    variables = jax.tree.map(lambda x: rng.normal(size=x.shape) / 2, shapes)
    if "batch_stats" in variables:
        variables["batch_stats"] |= {"var": np.array(0.5), "safe_threshold": np.array(0.4)}

    @jax.jit
    def run(variables, images, texts):
        return (
            head.apply(variables, images, texts, False),
            head.apply(variables, images, texts, method="alignment"),
        )

    scores, weights = map(np.asarray, run(jax.tree.map(np.float32, variables), *CODES))
    images, texts = jax.tree.map(np.float64, CODES)
    assert weights.shape == (PAIRS, REGIONS.max(), WORDS.max())
    for p, (r, w) in enumerate(zip(REGIONS, WORDS, strict=True)):
        codes = images.regions[p, :r], texts.words[p, :w], images.overall[p], texts.overall[p]
        score, expected = pair(variables, *codes, **settings)
        np.testing.assert_allclose(scores[p, p], score, rtol=1e-4)
        np.testing.assert_allclose(weights[p, :r, :w], expected, rtol=2e-3, atol=1e-6)
        assert not weights[p, r:].any() and not weights[p, :, w:].any()
    totals = weights.sum((1, 2))
    assert np.all(weights >= 0) and np.all(totals > 0)
    if name.endswith("naive"):
        np.testing.assert_allclose(totals, 1, rtol=1e-5)
    else:
        assert totals.mean() < 0.99 and totals.max() < 1 + 1e-5


@pytest.mark.parametrize("name", HEADS)
def test_a_model_says_whether_it_has_them(name):
    config = defaults.default()
    config.model.head = name
    config.model.update(tiny.MODEL)
    if name == "cam":
        config.model.matching = "partial"
    model = make_model(config, vocabulary_size=9)
    assert model.has_alignment == (name in {"cam", "chan", "imram", "naaf", "omit", "saf", "sgr"})
    if not model.has_alignment:
        return
    images, tokens = np.ones((3, 7, 10), np.float32), np.ones((3, 5), np.int32)
    batch = Batch(images, np.full(3, 7), tokens, np.full(3, 5))

    def run():
        variables = model.init(jax.random.key(0), batch)
        return model.apply(variables, batch, method=lambda m, x: m.alignment(*m.encode(x)))

    assert jax.eval_shape(run).shape == (3, 7, 5)
