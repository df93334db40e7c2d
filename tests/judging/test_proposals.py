"""Proposals for pairs whose partners are known."""

import numpy as np
import pytest

from l2rm_jax.judging import proposals
from l2rm_jax.judging.proposals import propose
from tests.judging.parts import divided
from tests.judging.synthetic import make_pairs

IMAGES = 300


def find(suspicious=None, stored=None, images=None, captions=None, top=3):
    folds, keys, _ = divided(images, captions, stored)
    return propose(images, captions, folds, keys, suspicious, np.zeros(len(stored)), top, 0)


@pytest.fixture(scope="module")
def pairs():
    return make_pairs(IMAGES, 1, 0.3, noise=0.5)


@pytest.mark.slow
def test_partners_are_proposed_with_their_probability(pairs):
    images, captions, stored, wrong = pairs
    found = find(wrong, stored, images, captions)
    rows = np.flatnonzero(wrong)
    own = np.arange(IMAGES)  # one caption per image: caption k was written for image k
    first = own[found.caption[rows, 0]] == stored[rows]
    assert first.mean() > 0.6
    assert found.probability[rows, 0].mean() == pytest.approx(first.mean(), abs=0.2)
    assert (found.caption[~wrong] == -1).all() and np.isnan(found.none_fits[~wrong]).all()
    assert wrong[found.caption[rows][found.caption[rows] >= 0]].all()
    total = found.probability[rows].sum(axis=1)
    assert (total <= 1 + 1e-5).all() or found.none_fits[rows].min() >= 0
    assert (np.diff(found.probability[rows], axis=1) <= 1e-6).all()


@pytest.mark.slow
def test_none_fits_where_the_partner_is_gone(pairs):
    images, captions, stored, wrong = pairs
    rows = np.flatnonzero(wrong)
    gone = rows[: len(rows) // 2]  # their captions leave, and so do their images
    kept = np.setdiff1d(np.arange(IMAGES), gone)
    found = find(wrong[kept], stored[kept], images, captions[kept])
    suspicious = np.flatnonzero(wrong[kept])
    has_partner = np.isin(stored[kept][suspicious], kept)
    none = found.none_fits[suspicious]
    assert none[~has_partner].mean() > none[has_partner].mean() + 0.15


@pytest.mark.slow
def test_a_matrix_and_blocks_give_the_same_proposals(pairs, monkeypatch):
    """Small problems are solved in blocks, groups of a large one by a matrix."""
    images, captions, stored, wrong = pairs
    real, found = proposals._best_within, []

    def both(*arrays):
        *arrays, shape, top = arrays
        assert shape is None
        size = len(arrays[0]), len(arrays[1])
        found.append([real(*arrays, each, top) for each in (None, size)])
        return found[-1][0]

    monkeypatch.setattr(proposals, "_best_within", both)
    find(wrong, stored, images, captions)
    [(blocks, matrix)] = found
    assert (blocks[1][:, 0] > 0.1).any()
    for each, other in zip(blocks[1:], matrix[1:], strict=True):
        np.testing.assert_allclose(each, other, atol=2e-3)


@pytest.mark.slow
def test_the_largest_problems_are_solved_in_groups(pairs, monkeypatch):
    images, captions, stored, wrong = pairs
    whole = find(wrong, stored, images, captions)
    for limit in ("GROUP", "MOST_UNITS"):
        monkeypatch.setattr(proposals, limit, 50)
    parts = find(wrong, stored, images, captions)
    rows = np.flatnonzero(wrong)
    same = whole.caption[rows, 0] == parts.caption[rows, 0]
    assert same.mean() > 0.5


def test_nothing_is_proposed_without_suspicious_pairs(pairs):
    images, captions, stored, wrong = pairs
    for suspicious, top in ((np.zeros(IMAGES, bool), 3), (wrong, 0)):
        found = find(suspicious, stored, images, captions, top=top)
        assert (found.caption == -1).all() and np.isnan(found.none_fits).all()
