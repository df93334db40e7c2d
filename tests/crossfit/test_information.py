"""Information and known negatives against loops."""

import numpy as np
import pytest
from l2rm_jax.crossfit import information

from l2rm_jax.errors import DataError
from l2rm_jax.judging.information import (
    best_temperature,
    evidence_by_fold,
    fold_evidence,
    product_similarity,
)

IMAGES, PAIRS = 150, 300


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    similarities = rng.uniform(-1, 1, (IMAGES, PAIRS)).astype(np.float32)
    return similarities, rng.integers(0, IMAGES - 5, PAIRS)  # some images have no caption


def block(similarities):
    return lambda images, captions: similarities[np.ix_(images, captions)]


def information_by_loops(similarities, stored, pairs, temperature):
    """Information of all images with all of the captions, [images, pairs]; NaN for the rest."""
    images = sorted({int(stored[pair]) for pair in pairs})
    table, s = np.full((IMAGES, PAIRS), np.nan), similarities.astype(np.float64) / temperature
    for i in images:
        for c in pairs:
            over_images = np.log(np.mean([np.exp(s[other, c]) for other in images]))
            over_captions = np.log(np.mean([np.exp(s[i, other]) for other in pairs]))
            table[i, c] = s[i, c] - (over_images + over_captions) / 2
    return table


@pytest.mark.parametrize("pairs", [np.arange(0, PAIRS, 9), np.arange(1, PAIRS, 4)], ids=len)
def test_evidence_equals_a_loop(data, pairs, monkeypatch):
    monkeypatch.setattr(information, "_PAIRS", 32)
    similarities, stored = data
    groups = np.arange(IMAGES) // 2
    found = fold_evidence(block(similarities), stored, pairs, groups, 5, temperature=0.3)
    table = information_by_loops(similarities, stored, pairs, 0.3)
    np.testing.assert_allclose(found.information, table[stored[pairs], pairs], atol=1e-4)
    images = np.unique(stored[pairs])
    for at, pair in enumerate(pairs):
        wrong = images[groups[images] != groups[stored[pair]]]
        distances = abs(found.negatives[at][:, None] - table[wrong, pair])
        assert distances.min(axis=1).max() < 1e-4


def test_siblings_share_negative_images(data):
    _, stored = data
    column = np.arange(IMAGES)[:, None] + np.zeros(PAIRS)  # the image alone decides
    found = fold_evidence(block(column), stored, np.arange(PAIRS), np.arange(IMAGES), 0, 10.0)
    for image in np.unique(stored):
        rows = found.negatives[stored == image]
        assert np.ptp(rows, axis=0).max() < 1e-3


def test_samples_approximate_all(data, monkeypatch):
    similarities, stored = data
    pairs, own = np.arange(PAIRS), np.arange(IMAGES)
    full = fold_evidence(block(similarities), stored, pairs, own, 0, temperature=1.0)
    monkeypatch.setattr(information, "REFERENCES", 60)
    few = fold_evidence(block(similarities), stored, pairs, own, 0, temperature=1.0)
    assert 0 < abs(few.information - full.information).max() < 0.2


def test_folds_are_put_together_in_the_order_of_the_pairs(data):
    similarities, stored = data
    folds, pairs, own = np.arange(IMAGES) % 3, np.arange(4, PAIRS), np.arange(IMAGES)
    asked = {}

    def similarity_of(fold, captions):
        asked[fold] = captions
        return block(similarities)

    found = evidence_by_fold(similarity_of, stored, folds, pairs, own, seed=7)
    for fold, captions in asked.items():
        np.testing.assert_array_equal(captions, pairs[folds[stored[pairs]] == fold])
        alone = fold_evidence(block(similarities), stored, captions, own, [7, fold])
        np.testing.assert_array_equal(found.information[captions - 4], alone.information)
        np.testing.assert_array_equal(found.negatives[captions - 4], alone.negatives)
    assert sorted(asked) == [0, 1, 2]


def test_one_group_has_no_negatives(data):
    similarities, stored = data
    with pytest.raises(DataError, match="of one group in a fold"):
        fold_evidence(block(similarities), stored, np.arange(9), np.zeros(IMAGES, int), 0)


@pytest.mark.parametrize("scale", [0.01, 1.0, 40.0])
def test_the_best_temperature_gives_matched_pairs_the_most_information(scale):
    """Against a grid, with images of unequally many captions, at the scale of any head."""
    rng = np.random.default_rng(1)
    own = np.sort(rng.integers(0, 40, 130))
    similarities = rng.standard_normal((40, 130))
    similarities[own, np.arange(130)] += 1.5
    similarities *= scale

    def information(temperature):
        s = similarities / temperature
        of_captions = np.log(np.mean(np.exp(s), axis=0))
        of_images = np.log(np.mean(np.exp(s), axis=1))[own]
        return np.mean(s[own, np.arange(130)] - (of_captions + of_images) / 2)

    found = best_temperature(similarities.astype(np.float32), own)
    grid = similarities.std() / np.geomspace(0.1, 30, 400)
    best = max(grid, key=information)
    assert found == pytest.approx(best, rel=0.1) and information(found) > information(best) - 1e-3


def test_the_best_temperature_has_bounds():
    """Where every pair is ranked right, and where none is told from another."""
    right, own = np.eye(30, dtype=np.float32), np.arange(30)
    assert right.std() / 30.1 < best_temperature(right, own) < right.std()
    assert best_temperature(-right, own) == pytest.approx(right.std() * 10, rel=0.1)
    assert 0 < best_temperature(0 * right, own) < np.inf


def test_products_are_found_by_row():
    rng = np.random.default_rng(2)
    images, captions = np.array([2, 5, 9]), np.array([1, 4, 6, 7])
    of_images, of_captions = rng.random((3, 8), np.float32), rng.random((4, 8), np.float32)
    similarity = product_similarity(images, of_images, captions, of_captions)
    expected = of_images[[2, 0]] @ of_captions[[3, 3, 1]].T
    found = similarity(np.array([9, 2]), np.array([7, 7, 4]))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
