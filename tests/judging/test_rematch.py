"""Rematching: swapped images are recovered, and all numbers equal a plain reference."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import rematch
from l2rm_jax.judging.linear import fit_weighted

IMAGES, EACH = 60, 3
MODULE = sys.modules[rematch.__module__]  # the function hides it in the package


@pytest.fixture(scope="module")
def data():
    """60 images, 30 of them with each other's captions; a posterior that is right for most."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((IMAGES, 8))
    own = np.repeat(np.arange(IMAGES), EACH)
    images = np.concatenate([hidden, rng.standard_normal((IMAGES, 2))], axis=1)
    captions = np.concatenate([hidden[own], rng.standard_normal((len(own), 2))], axis=1)
    captions += 0.1 * rng.standard_normal(captions.shape)
    to = np.arange(IMAGES)
    to[:30] = np.roll(to[:30], 1)
    stored = to[own]
    posterior = np.where(stored == own, 0.1, 0.9)
    posterior[own == 40] = 0.7  # a false alarm
    posterior[own == 5] = 0.2  # a miss
    pairs = Pairs(images.astype(np.float32), captions.astype(np.float32), stored)
    return SimpleNamespace(pairs=pairs, own=own, stored=stored, posterior=posterior)


def rematched(data, together=True, **settings):
    sets = data.posterior if together else 0 * data.posterior
    return rematch(data.pairs, data.posterior, sets, **settings)


def cosines(data, units, images):
    """Cosines of each unit's mean caption code with each image code, `[images, units]`."""
    pairs = data.pairs
    model = fit_weighted(pairs.images, pairs.captions, data.stored, 1 - data.posterior)
    codes = [np.mean(model.encode_captions(pairs.captions[unit]), axis=0) for unit in units]
    return np.asarray(model.encode_images(pairs.images[images])) @ np.stack(codes).T


def loop(data, together):
    """Weights by (image, caption): plain Sinkhorn in float64 over the suspicious units."""
    suspicious = np.flatnonzero(data.posterior > 0.5)
    if together:
        units = [np.flatnonzero(data.stored == i) for i in np.unique(data.stored[suspicious])]
    else:
        units = [np.array([pair]) for pair in suspicious]
    holds = [data.stored[unit[0]] for unit in units]
    images = sorted(set(holds))
    kernel = np.exp((cosines(data, units, images).astype(np.float64) - 1) / 0.02)
    takes, v = np.array([holds.count(image) for image in images]), np.ones(len(units))
    for _ in range(20000):
        u = takes / (kernel @ v)
        v = 1 / (kernel.T @ u)
    plan, weights = u[:, None] * kernel * v, {}
    for i, image in enumerate(images):
        for k, unit in enumerate(units):
            for caption in unit if plan[i, k] > 0.1 else ():
                weights[image, caption] = plan[i, k] * data.posterior[caption]
    return weights


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_weights_equal_a_loop(data, together):
    found, expected = rematched(data, together), loop(data, together)
    assert list(zip(found.image, found.caption, strict=True)) == sorted(expected)
    np.testing.assert_allclose(found.weight, [expected[k] for k in sorted(expected)], atol=1e-3)
    assert (found.weight > 0).all() and (found.weight <= 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_swapped_images_are_found_again(data, together):
    """Partners are found about as often as by the best assignment on the same cosines."""
    image, caption, weight = rematched(data, together)
    right = weight[image == data.own[caption]].sum() / weight.sum()
    units = [np.flatnonzero(data.stored == i) for i in range(IMAGES)]
    units = [unit for unit in units if data.posterior[unit[0]] > 0.5]
    images = [data.stored[unit[0]] for unit in units]
    rows, columns = linear_sum_assignment(-cosines(data, units, images))
    best = np.mean([images[i] == data.own[units[k][0]] for i, k in zip(rows, columns, strict=True)])
    assert len(units) == 30 and best > 0.85 and right > best - 0.1
    suspicious = data.posterior > 0.5
    before = data.stored[suspicious] == data.own[suspicious]
    assert before.mean() < 0.1  # of the pairs as they are stored
    assert (data.posterior[caption] > 0.5).all() and set(image) <= set(images)


@pytest.mark.slow
def test_groups_are_solved_by_themselves(data, monkeypatch):
    monkeypatch.setattr(MODULE, "GROUP", 12)
    monkeypatch.setattr(MODULE, "MOST_UNITS", 12)
    found, again, other = (rematched(data, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    assert list(found.image) != list(other.image)
    # Three groups of ten images: captions are matched only with images of their group.
    suspicious = np.unique(data.stored[data.posterior > 0.5])
    for group in np.split(np.random.default_rng(1).permutation(30), 3):
        images = suspicious[group]
        inside = np.isin(found.image, images)
        assert inside.any() and set(data.stored[found.caption[inside]]) <= set(images)


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_in_blocks_the_same_pairs_are_rematched(data, monkeypatch, together):
    expected = rematched(data, together)
    monkeypatch.setattr(MODULE, "GROUP", 12)
    found = rematched(data, together)
    np.testing.assert_array_equal(found.image, expected.image)
    np.testing.assert_array_equal(found.caption, expected.caption)
    np.testing.assert_allclose(found.weight, expected.weight, atol=0.02)  # the error is 0.1%


@pytest.mark.parametrize("suspicious", [0, 1])
def test_too_few_suspicious_pairs_are_not_rematched(data, suspicious):
    posterior = np.full(len(data.own), 0.1)
    posterior[:suspicious] = 0.8
    found = rematch(data.pairs, posterior, 0 * posterior)
    assert [len(array) for array in found] == [0, 0, 0]


@pytest.mark.slow
def test_two_suspicious_images_with_unequal_sets(data):
    stored = np.delete(data.stored, 0)  # one image has two captions
    posterior = np.where(np.isin(stored, [0, 1]), 0.75, 0.0)
    pairs = Pairs(data.pairs.images, np.delete(data.pairs.captions, 0, axis=0), stored)
    found = rematch(pairs, posterior, posterior)
    sums = np.bincount(found.caption, found.weight, len(stored))
    np.testing.assert_allclose(sums[posterior > 0.5], 0.75, atol=0.1)  # small shares are dropped
    assert not sums[posterior < 0.5].any()
