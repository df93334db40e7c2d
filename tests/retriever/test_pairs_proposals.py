"""Transport of a whole set: against a naive solver, the mass that can move, and the groups."""

import numpy as np
import pytest
from l2rm_jax.retriever.pairs_proposals import divide, movable, transport
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow


def naive_shares(costs, mass, allowed, moved: float, epsilon: float) -> np.ndarray:
    """Sinkhorn's iterations in float64, with a dummy image and a dummy caption."""
    images, captions = costs.shape
    kernel = np.ones((images + 1, captions + 1))
    kernel[:-1, :-1] = np.where(allowed, np.exp(-costs / epsilon), 0)
    kernel[-1, -1] = 0
    rows, columns = np.r_[mass, captions - moved], np.r_[np.ones(captions), mass.sum() - moved]
    v = np.ones(captions + 1)
    for _ in range(20_000):
        u = rows / (kernel @ v)
        v = columns / (kernel.T @ u)
    return (u[:, None] * kernel * v)[:-1, :-1]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_shares_are_those_of_a_naive_solver(share):
    rng = np.random.default_rng(1)
    image_of = np.repeat(np.arange(6), [1, 2, 3, 1, 4, 2])
    costs, mass = rng.uniform(0.2, 1, (6, 13)), np.bincount(image_of)
    allowed = np.arange(6)[:, None] != image_of
    shares = transport(costs, mass, allowed, share, 0.05, (8, 16))
    assert shares.shape == (6, 13) and not shares[~allowed].any()
    assert shares.sum() == pytest.approx(share * 13, rel=1e-3)
    expected = naive_shares(costs, mass, allowed, share * 13, 0.05)
    np.testing.assert_allclose(shares, expected, atol=2e-3)
    assert (shares.sum(axis=0) < 1.001).all() and (shares.sum(axis=1) < mass + 0.001).all()


def test_a_single_image_can_take_nothing():
    assert not transport(
        np.ones((1, 4)), np.array([4]), np.zeros((1, 4), bool), 0.9, 0.1, (1, 4)
    ).any()


@pytest.mark.parametrize("seed", range(5))
def test_the_mass_that_can_move_is_a_maximal_flow(seed):
    """Captions of some images are in other groups, and one image has most of the captions."""
    rng = np.random.default_rng(seed)
    images, captions = 5, 12
    owner = np.where(rng.random(captions) < 0.6, 0, rng.integers(0, images + 2, captions))
    mass, allowed = rng.integers(1, 5, images), np.arange(images)[:, None] != owner
    source, sink = images + captions, images + captions + 1
    graph = np.zeros((sink + 1, sink + 1), np.int32)
    graph[source, images : images + captions] = 1
    graph[images : images + captions, :images] = allowed.T
    graph[:images, sink] = mass
    assert movable(mass, allowed) == maximum_flow(csr_matrix(graph), source, sink).flow_value


def test_groups_hold_everything_once_and_keep_together_what_fits():
    """Four kinds of images; captions are stored with images of another kind."""
    rng = np.random.default_rng(0)
    kinds = rng.permutation(np.repeat(np.arange(4), 10))
    centres = np.array([[3, 1, 0], [3, -1, 0], [-3, 0, 1], [-3, 0, -1]])
    images = centres[kinds] + 0.1 * rng.normal(size=(40, 3))
    own = rng.integers(0, 40, 120)
    captions = centres[kinds[own]] + 0.1 * rng.normal(size=(120, 3))
    stored = np.array([rng.choice(np.flatnonzero(kinds != kinds[image])) for image in own])
    groups = divide(images, captions, stored, 4)
    for side, size in (("images", 40), ("captions", 120)):
        together = np.concatenate([getattr(group, side) for group in groups])
        np.testing.assert_array_equal(np.sort(together), np.arange(size))
    for group in groups:
        assert len(group.images) == 10 and len(set(kinds[group.images])) == 1
        assert len(group.captions) <= 45
    home = {image: k for k, group in enumerate(groups) for image in group.images}
    found = [
        home[own[caption]] == k for k, group in enumerate(groups) for caption in group.captions
    ]
    assert np.mean(found) > 0.95


def test_a_full_group_keeps_the_captions_that_fit_best():
    """All captions fit the images of one kind; there is room for half of them."""
    images = np.array([[1.0, 0], [0.9, 0], [-1.0, 0], [-0.9, 0]])
    captions = np.stack([np.linspace(1, 2, 8), np.zeros(8)], axis=1)
    groups = divide(images, captions, np.full(8, 3), 2)
    [first] = [group for group in groups if 0 in group.images]
    np.testing.assert_array_equal(first.captions, np.arange(2, 8))
    # An image alone in its group is no place for its own captions, unless no other has room.
    alone = divide(images[:2], captions, np.zeros(8, int), 2)
    assert [len(group.captions) for group in alone if 1 in group.images] == [6]
