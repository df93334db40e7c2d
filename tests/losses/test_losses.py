"""Losses against plain loops, and their symmetries."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses.complementary import BOUNDS, complementary_contrastive, draw_negatives
from l2rm_jax.losses.rematching import symmetric_kl
from tests.golden.fidelity.losses import CONTRASTIVE, RANKING, REMATCHING

NAMES = [*RANKING, *CONTRASTIVE, *BOUNDS, *REMATCHING]
TAU, MARGIN, Q = 0.05, 0.2, 0.3


@functools.cache
def loss(name, tau=TAU):
    """The named loss as a compiled function of (sims, plan)."""
    if name in RANKING:
        return jax.jit(lambda sims, plan: RANKING[name](sims, margin=MARGIN))
    if name in CONTRASTIVE:
        return jax.jit(lambda sims, plan: CONTRASTIVE[name](sims, tau=tau))
    if name in BOUNDS:
        return jax.jit(lambda sims, _: complementary_contrastive(sims, tau=tau, bound=name, q=Q))
    return jax.jit(lambda sims, plan: REMATCHING[name](sims, plan, tau=tau))


def draw(images, captions, seed=0):
    rng = np.random.default_rng(seed)
    sims = rng.uniform(-0.3, 1, (images, captions)).astype(np.float32)
    plan = (rng.uniform(0, 1, (images, captions)) ** 6).astype(np.float32)
    plan[rng.uniform(size=plan.shape) < 0.3] = 0
    plan[1] = 0
    return sims, plan


def naive_hinges(sims):
    size = len(sims)
    captions, images = np.zeros((size, size)), np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            if i != j:
                captions[i, j] = max(0, MARGIN + sims[i, j] - sims[i, i])
                images[i, j] = max(0, MARGIN + sims[j, i] - sims[i, i])
    return captions, images


def naive_contrastive(sims):
    """InfoNCE and reverse cross entropy, one image and one caption at a time."""
    size, forward, reverse = len(sims), 0.0, 0.0
    for i in range(size):
        for scores in (sims[i], sims[:, i]):
            odds = np.exp(scores.astype(np.float64) / TAU)
            probabilities = odds / odds.sum()
            forward -= np.log(probabilities[i]) / size
            for j in range(size):
                reverse -= probabilities[j] * np.log((i == j) + 1e-7) / size
    return forward, reverse


def naive_complementary(sims, penalty, negatives=None):
    """Sum the penalty over each query's negatives, one at a time."""
    size, total = len(sims), 0.0
    for scores in (sims.astype(np.float64), sims.T.astype(np.float64)):
        for query in range(size):
            odds = np.exp(scores[query] / TAU)
            for j in range(size):
                if j != query and (negatives is None or negatives[query, j]):
                    total += penalty(odds[j] / odds.sum()) / size
    return total


def naive_rematching(sims, plan, divergence):
    """Mean divergence(probabilities, labels) over images, plus the mean over captions."""
    total = 0.0
    for s, p in ((sims, plan), (sims.T, plan.T)):
        for scores, labels in zip(s.astype(np.float64), p.astype(np.float64), strict=True):
            odds = np.exp(scores / TAU)
            probabilities = odds / (odds.sum() + 1e-10)
            labels = np.maximum(labels, 1e-10)
            total += divergence(probabilities, labels / labels.sum()) / len(s)
    return total


def kl_divergence(p, q):
    return np.sum(p * np.log(p / q))


PENALTIES = {
    "mae": lambda p: p,
    "log": lambda p: -np.log1p(-p),
    "exp": lambda p: np.exp(p - 1),
    "gce": lambda p: (1 - (1 - p) ** Q) / Q,
    "tan": np.tan,
}
NAIVE = {
    **{name: lambda s, p, f=f: naive_complementary(s, f) for name, f in PENALTIES.items()},
    "triplet_warmup": lambda s, p: sum(h.mean(1).sum() for h in naive_hinges(s)),
    "triplet_max_violation": lambda s, p: sum(h.max(1).sum() for h in naive_hinges(s)),
    "triplet_eval_loss": lambda s, p: sum(h.mean(1) for h in naive_hinges(s)),
    "InfoNCE": lambda s, p: naive_contrastive(s)[0],
    "RCE": lambda s, p: 0.5 * sum(naive_contrastive(s)),
    "Soft_InfoNCE": lambda s, p: naive_rematching(s, p, lambda q, t: -np.sum(t * np.log(q))),
    "KL": lambda s, p: naive_rematching(s, p, lambda q, t: kl_divergence(t, q)),
    "sym_KL": lambda s, p: naive_rematching(
        s, p, lambda q, t: 0.5 * (kl_divergence(t, q) + kl_divergence(q, t))
    ),
    "JS": lambda s, p: naive_rematching(
        s, p, lambda q, t: 0.5 * (kl_divergence((q + t) / 2, q) + kl_divergence((q + t) / 2, t))
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_plain_loops(name):
    shape = (7, 5) if name in REMATCHING else (6, 6)
    sims, plan = draw(*shape)
    np.testing.assert_allclose(loss(name)(sims, plan), NAIVE[name](sims, plan), rtol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_order_of_pairs_does_not_matter(name):
    sims, plan = draw(6, 6, seed=1)
    order = np.random.default_rng(2).permutation(6)
    value = loss(name)(sims, plan)
    expected = value[order] if name == "triplet_eval_loss" else value
    moved = loss(name)(sims[order][:, order], plan[order][:, order])
    np.testing.assert_allclose(moved, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_images_and_captions_are_treated_alike(name):
    sims, plan = draw(6, 6, seed=3)
    np.testing.assert_allclose(loss(name)(sims.T, plan.T), loss(name)(sims, plan), rtol=1e-5)


@pytest.mark.parametrize("name", REMATCHING)
def test_rematching_images_and_captions_move_independently(name):
    sims, plan = draw(7, 4, seed=4)
    rows, columns = np.array([3, 0, 6, 1, 5, 2, 4]), np.array([2, 0, 3, 1])
    moved = loss(name)(sims[rows][:, columns], plan[rows][:, columns])
    np.testing.assert_allclose(moved, loss(name)(sims, plan), rtol=1e-5)


@pytest.mark.parametrize("name", [*CONTRASTIVE, *BOUNDS, *REMATCHING])
@pytest.mark.parametrize("tau", [1e-3, 10.0])
def test_extreme_temperatures_stay_finite(name, tau):
    sims, plan = draw(5, 5, seed=5)
    value, gradient = jax.jit(jax.value_and_grad(loss(name, tau=tau)))(sims, plan)
    assert jnp.isfinite(value) and jnp.isfinite(gradient).all()


@pytest.mark.parametrize("name", ["KL", "sym_KL", "JS"])
def test_rematching_is_zero_only_when_similarities_follow_the_plan(name):
    # One softmax over everything makes rows and columns of the plan proportional to exp(sims/tau).
    sims, _ = draw(4, 6, seed=6)
    plan = jax.nn.softmax(jnp.asarray(sims).ravel() / 0.5).reshape(sims.shape)
    matched = loss(name, tau=0.5)(sims, plan)
    assert abs(matched) < 1e-5
    assert loss(name, tau=0.5)(sims, plan[::-1]) > 0.01


@pytest.mark.parametrize("name", ["mae", "log"])
def test_complementary_loss_over_selected_negatives(name):
    sims, _ = draw(6, 6, seed=7)
    negatives = np.random.default_rng(8).uniform(size=(6, 6)) < 0.4
    np.fill_diagonal(negatives, False)
    value = complementary_contrastive(sims, tau=TAU, bound=name, negatives=jnp.asarray(negatives))
    expected = naive_complementary(sims, PENALTIES[name], negatives)
    np.testing.assert_allclose(value, expected, rtol=2e-5)


def test_bounds_are_above_the_probability():
    sims, _ = draw(6, 6, seed=9)
    values = {name: float(loss(name)(sims, None)) for name in BOUNDS}
    assert all(value > values["mae"] for name, value in values.items() if name != "mae")


def test_a_negative_with_probability_one_keeps_its_loss():
    """Its probability rounds to 1 in float32, but the rest, 1 - p, must not round to 0."""
    sims = np.zeros((4, 4), np.float32)
    sims[0, 1], gap = 0.9, 0.9 / TAU
    value, gradient = jax.jit(jax.value_and_grad(loss("log")))(sims, None)
    others = np.log(np.exp(gap) + 3) - np.log(3)  # -log(1 - p), in its row and in its column
    even = 2 * 3 * 3 * np.log(4 / 3)  # the three other rows, and columns, are equal
    assert value == pytest.approx((2 * others + even) / 4, rel=1e-3)
    assert gradient[0, 1] == pytest.approx(2 / TAU / 4, rel=1e-2)


def test_negatives_are_drawn_evenly_and_never_the_pair_itself():
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: draw_negatives(key, 5, 2)))(keys))
    assert (drawn.sum(2) == 2).all()
    shares = drawn.mean(0)
    assert not np.diagonal(shares).any()
    np.testing.assert_allclose(shares[~np.eye(5, dtype=bool)], 0.5, atol=0.05)
    assert len(np.unique(drawn[:, 0], axis=0)) == 6  # every two of four
    all_of_them = np.asarray(draw_negatives(keys[0], 5, 4))
    np.testing.assert_array_equal(all_of_them, ~np.eye(5, dtype=bool))


@pytest.mark.usefixtures("unchecked_arrays")
@pytest.mark.parametrize("name", [*RANKING, *CONTRASTIVE, *BOUNDS])
def test_rectangular_pairs_are_refused(name):
    with pytest.raises(ValueError, match=r"\(3, 4\).*square"):
        loss(name)(jnp.zeros((3, 4)), None)


@pytest.mark.usefixtures("unchecked_arrays")
def test_negatives_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"negatives: .*\(4, 4\).*\(3, 3\)"):
        complementary_contrastive(jnp.zeros((3, 3)), tau=TAU, negatives=jnp.ones((4, 4), bool))


@pytest.mark.usefixtures("unchecked_arrays")
def test_plan_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"\(3, 4\) and \(4, 3\)"):
        symmetric_kl(jnp.zeros((3, 4)), jnp.zeros((4, 3)), tau=TAU)
