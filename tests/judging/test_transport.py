"""Transport of a whole set: against a naive solver, the mass that can move, and the groups."""

import sys

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from l2rm_jax.judging.transport import divide, movable, plan_blocks, transport, transport_of


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
    shares = transport(costs, mass, image_of, share, 0.05, (8, 16))
    assert shares.shape == (6, 13) and not shares[~allowed].any()
    assert shares.sum() == pytest.approx(share * 13, rel=1e-3)
    expected = naive_shares(costs, mass, allowed, share * 13, 0.05)
    np.testing.assert_allclose(shares, expected, atol=2e-3)
    assert (shares.sum(axis=0) < 1.001).all() and (shares.sum(axis=1) < mass + 0.001).all()


def test_blocks_are_rows_of_the_plan_of_a_matrix(monkeypatch):
    """The last block has fewer rows than the others."""
    monkeypatch.setattr(sys.modules[transport_of.__module__], "_ROWS", 4)
    rng = np.random.default_rng(1)
    images, captions = (unit(rng.normal(size=(size, 5))).astype(np.float32) for size in (6, 13))
    own, mass = np.r_[np.repeat(np.arange(6), 2), -1], np.array([2, 2, 2, 2, 2, 4])
    plan = transport_of(images, captions, mass, own, 0.7, 0.1)
    blocks = {rows.start: block for rows, block in plan_blocks(plan)}
    assert [len(block) for block in blocks.values()] == [4, 2]
    allowed = own != np.arange(6)[:, None]
    moved = 0.7 * movable(mass, own)
    expected = naive_shares(1 - images @ captions.T, mass, allowed, moved, 0.1)
    np.testing.assert_allclose(np.concatenate([*blocks.values()]), expected, atol=2e-3)


def test_a_single_image_can_take_nothing():
    image, captions, own = np.ones((1, 1)), np.ones((4, 1)), np.zeros(4, int)
    assert transport_of(image, captions, np.array([4]), own, 0.9, 0.1) is None
    assert not transport(np.ones((1, 4)), np.array([4]), own, 0.9, 0.1, (1, 4)).any()


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
    most = maximum_flow(csr_matrix(graph), source, sink).flow_value
    assert movable(mass, np.where(owner < images, owner, -1)) == most


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_groups_hold_everything_once_and_keep_together_what_fits():
    """Four kinds of images, and captions of each kind."""
    rng = np.random.default_rng(0)
    kinds = rng.permutation(np.repeat(np.arange(4), 10))
    centres = np.array([[3, 1, 0], [1, -3, 0], [-3, 0, 1], [0, 1, -3]])
    images = unit(centres[kinds] + 0.1 * rng.normal(size=(40, 3))).astype(np.float32)
    own = rng.integers(0, 40, 120)
    captions = unit(centres[kinds[own]] + 0.1 * rng.normal(size=(120, 3))).astype(np.float32)
    assert [len(side) for side in divide(images, captions, 200, 0)[0]] == [40, 120]
    groups = divide(images, captions, 18, 0)
    assert len(groups) > 3
    for side, size in ((0, 40), (1, 120)):
        together = np.concatenate([group[side] for group in groups])
        np.testing.assert_array_equal(np.sort(together), np.arange(size))
    home = {image: k for k, group in enumerate(groups) for image in group[0]}
    found = [home[own[caption]] == k for k, group in enumerate(groups) for caption in group[1]]
    assert np.mean(found) > 0.6
    most = [max(len(group[side]) for group in groups) for side in (0, 1)]
    assert most[0] <= 1.2 * 40 / len(groups) + 1 and most[1] <= 1.2 * 120 / len(groups) + 1
