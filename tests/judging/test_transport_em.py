"""The fit to a transport plan: captions are put back, in any order, and without judging a fold."""

import numpy as np
import pytest

from l2rm_jax.data.content_hashes import hash_rows
from l2rm_jax.judging import transport_em
from l2rm_jax.judging.transport_em import fit_by_transport, stored_pairs
from tests.judging.synthetic import make_pairs

IMAGES, EACH = 240, 3


def fitted(images, captions, stored):
    """Fit to all pairs, sorted by their contents; return the fit and the pairs."""
    key = hash_rows(images)
    order = np.argsort(key)
    place = np.argsort(order)
    by_key = np.lexsort((hash_rows(captions), place[stored]))
    pairs = stored_pairs(order, by_key, place[stored[by_key]], key)
    return fit_by_transport(images, captions, pairs, np.ones(len(stored)), 3.0), pairs


def shares(fit, pairs):
    """The share of each caption that goes to each image, by their rows."""
    dense = np.zeros((len(pairs.images), len(pairs.captions)))
    dense[np.ix_(pairs.images, pairs.captions)] = fit.plan.toarray()
    return dense


@pytest.mark.parametrize("blocks", [1, 3])
def test_moved_captions_are_put_back(blocks, monkeypatch):
    monkeypatch.setattr(transport_em, "_IMAGES", IMAGES // blocks)
    images, captions, stored, moved = make_pairs(IMAGES, EACH, 0.6)
    fit, pairs = fitted(images, captions, stored)
    found = shares(fit, pairs)
    own = np.repeat(np.arange(IMAGES), EACH)
    best = found.argmax(axis=0)
    # With three blocks, the image of two thirds of the moved captions is in another one.
    assert (best == own)[moved].mean() > 0.75 / blocks and (best == own)[~moved].mean() > 0.9
    assert found.sum(axis=0).max() < 1.001
    assert len(pairs.image_ends) == blocks


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_plan_equals_sinkhorn_with_a_bin(blocks):
    """Iterations in float64, with an explicit row and column for what stays."""
    rng = np.random.default_rng(0)
    images, rate = 20, 0.7
    position = np.sort(np.append(np.arange(images), rng.integers(0, images, 5)))
    captions = len(position)
    block = transport_em._Block(np.array([0, images]), np.array([0, captions]), position)
    information = rng.normal(0, 2, (images, captions)).astype(np.float32)
    found = block.plan(information.copy(), rate, blocks)
    prior = np.full((images, captions), rate / (blocks * images))
    prior[position, np.arange(captions)] += 1 - rate
    stays = captions * rate * (1 - 1 / blocks)  # in captions
    kernel = np.pad(prior * np.exp(information), (0, 1), constant_values=prior.mean())
    kernel[-1, -1] = 0
    rows, columns = np.append(np.bincount(position), stays), np.append(np.ones(captions), stays)
    u, v = np.ones(images + 1), np.ones(captions + 1)
    for _ in range(10):
        u = rows / np.maximum(kernel @ v, 1e-300)
        v = columns / np.maximum(kernel.T @ u, 1e-300)
    np.testing.assert_allclose(found, (u[:, None] * kernel * v)[:-1, :-1], atol=0.02)


def test_a_fit_does_not_depend_on_the_order_of_the_data():
    images, captions, stored, _ = make_pairs(IMAGES, EACH, 0.4)
    rng = np.random.default_rng(1)
    i, c = rng.permutation(IMAGES), rng.permutation(len(stored))
    fit, pairs = fitted(images, captions, stored)
    other, shuffled = fitted(images[i], captions[c], np.argsort(i)[stored[c]])
    np.testing.assert_array_equal(i[shuffled.images], pairs.images)
    np.testing.assert_array_equal(c[shuffled.captions], pairs.captions)
    for a, b in zip(fit.model, other.model, strict=True):
        np.testing.assert_array_equal(a, b)


def test_inner_folds_keep_the_plan_from_confirming_itself():
    """Vectors that tell nothing: most captions seem to have moved."""
    rng = np.random.default_rng(0)
    images, captions = (rng.standard_normal((IMAGES, 16)).astype(np.float32) for _ in range(2))
    plan = fitted(images, captions, np.arange(IMAGES))[0].plan.tocsr()
    assert plan.diagonal().sum() < 0.3 * plan.sum()


def test_pairs_are_sorted_by_block_fold_and_image(monkeypatch):
    monkeypatch.setattr(transport_em, "_IMAGES", 100)
    images, captions, stored, _ = make_pairs(IMAGES, EACH, 0.4)
    key = hash_rows(images) // np.uint64(2)
    pairs = stored_pairs(np.arange(IMAGES), np.arange(len(stored)), stored, key)
    np.testing.assert_array_equal(pairs.images[pairs.position], stored[pairs.captions])
    assert (np.diff(pairs.position) >= 0).all()
    for ends in (pairs.image_ends, pairs.caption_ends):
        np.testing.assert_array_equal(ends[1:, 0], ends[:-1, -1])
    assert np.diff(pairs.image_ends[:, [0, -1]]).max() <= 100
    for images, captions in zip(pairs.image_ends.ravel(), pairs.caption_ends.ravel(), strict=True):
        before = pairs.position[:captions]
        assert (before < images).all() and (pairs.position[captions:] >= images).all()
