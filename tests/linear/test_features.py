"""Vectors of sets and of words, against loops and singular value decompositions."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

from l2rm_jax.data import RegionFeatures
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.vectors import caption_vectors, image_vectors
from l2rm_jax.errors import DataError
from l2rm_jax.linear import directions, set_features, word_features
from l2rm_jax.linear.directions import leading_directions
from l2rm_jax.linear.set_features import (
    cluster,
    fit_pooling,
    looks_like_grid,
    pooled_size,
    pooled_vectors,
    set_rows,
)
from l2rm_jax.linear.word_features import fit_words, weighted_counts, word_counts, word_rows


def smooth_grids(count, side, d, rng):
    """Grids whose neighbouring cells are similar."""
    cells = rng.standard_normal((count, side + 1, side + 1, d))
    cells = cells[:, 1:, 1:] + cells[:, :-1, 1:] + cells[:, 1:, :-1]
    return cells.reshape(count, side * side, d).astype(np.float32)


def reader(sets, sizes):
    return lambda rows: (sets[rows], sizes[rows])


def test_directions_span_the_leading_eigenvectors():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((80, 80)))[0]
    matrix = (basis * 0.7 ** np.arange(80)) @ basis.T
    found = leading_directions(lambda m: matrix @ m, 80, 6)
    np.testing.assert_allclose(found.T @ found, np.eye(6), atol=1e-9)
    np.testing.assert_allclose(abs(np.sum(found * basis[:, :6], axis=0)), 1, atol=1e-6)
    assert leading_directions(lambda m: matrix @ m, 80, 99).shape == (80, 80)


@pytest.mark.parametrize("exact", [0, 2048])
@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("shape", [(30, 50), (50, 30)])
def test_principal_directions_are_right_singular_vectors(shape, kind, exact, monkeypatch):
    monkeypatch.setattr(directions, "EXACT", exact)
    rng = np.random.default_rng(6)
    left, right = (np.linalg.qr(rng.standard_normal((n, 12)))[0] for n in shape)
    found = directions.principal_directions(kind((left * 0.6 ** np.arange(12)) @ right.T), 5)
    np.testing.assert_allclose(abs(found.T @ right[:, :5]), np.eye(5), atol=1e-4)


def test_beyond_the_rank_there_are_no_directions():
    rows = np.diag([3.0, 2.0, 0.0])[:, [0, 1, 2, 2]]
    found = directions.principal_directions(rows, 9)
    np.testing.assert_allclose(abs(found), np.eye(4) * [1, 1, 0, 0], atol=1e-12)


@pytest.mark.parametrize("is_grid", [False, True])
def test_pooled_numbers_equal_a_loop(is_grid):
    rng = np.random.default_rng(1)
    sets, words = rng.standard_normal((4, 9, 3)).astype(np.float32), rng.standard_normal((5, 3))
    sizes = np.full(4, 9) if is_grid else np.array([9, 4, 1, 6])
    sets[np.arange(9) >= sizes[:, None]] = 0
    fitted = words.astype(np.float32), np.float32(0.8)
    found = set_features.pooled_numbers(sets, sizes, *fitted, is_grid)
    for row, (vectors, size) in enumerate(zip(sets, sizes, strict=True)):
        real = vectors[:size].astype(np.float64)
        shares = np.zeros(5)
        for vector in real:
            weights = np.exp(-((vector - words) ** 2).sum(axis=1) / 0.8)
            shares += weights / weights.sum() / size
        parts = [real.mean(0), real.std(0), real.max(0), np.sqrt(shares)]
        if is_grid:
            cells = real.reshape(3, 3, 3)
            parts += [cells[:1, :1], cells[:1, 1:], cells[1:, :1], cells[1:, 1:]]
            parts[4:] = [part.mean(axis=(0, 1)) for part in parts[4:]]
        np.testing.assert_allclose(found[row], np.concatenate(parts), atol=1e-5)


@pytest.mark.parametrize("few", [0, 2048])
def test_rows_are_the_principal_components_of_the_pooled_numbers(few, monkeypatch):
    monkeypatch.setattr(set_features, "EXACT", few)
    monkeypatch.setattr(set_features, "_BLOCK", 64)
    monkeypatch.setattr(set_features, "DIMENSIONS", 5)
    monkeypatch.setattr(set_features, "VISUAL_WORDS", 4)
    rng = np.random.default_rng(2)
    sets, sizes = smooth_grids(100, 4, 3, rng), np.full(100, 16)
    pooling = fit_pooling(reader(sets, sizes), 100)
    rows = set_rows(reader(sets, sizes), 100, pooling)
    pooled = np.asarray(set_features.pooled_numbers(sets, sizes, *pooling[:2], True))
    assert len(pooling.mean) == pooled.shape[1]  # the quadrants are among the numbers
    np.testing.assert_allclose(pooled_vectors(sets[7:9], sizes[7:9], pooling), rows[7:9], atol=1e-4)
    scaled = (pooled - pooled.mean(0)) / pooled.std(0)
    left, values, _ = np.linalg.svd(scaled, full_matrices=False)
    expected = left[:, :5] * values[:5]
    np.testing.assert_allclose(rows @ rows.T, expected @ expected.T, atol=0.05)


def test_numbers_that_never_change_say_nothing(monkeypatch):
    monkeypatch.setattr(set_features, "VISUAL_WORDS", 4)
    sets = np.random.default_rng(3).standard_normal((30, 4, 3)).astype(np.float32)
    sets[..., 2] = 7
    read = reader(sets, np.full(30, 4))
    rows = set_rows(read, 30, fit_pooling(read, 30))
    assert np.isfinite(rows).all() and abs(rows).max() < 30


def test_grids_are_told_from_sets():
    rng = np.random.default_rng(4)
    grids = smooth_grids(60, 6, 5, rng)
    assert looks_like_grid(grids)
    assert not looks_like_grid(rng.permuted(grids, axis=1))
    by_size = np.argsort(np.linalg.norm(grids, axis=2), axis=1)
    assert not looks_like_grid(np.take_along_axis(grids, by_size[..., None], axis=1))
    assert not looks_like_grid(grids[:, :35]) and not looks_like_grid(grids[:1])


def test_sets_of_different_sizes_are_no_grid(monkeypatch):
    monkeypatch.setattr(set_features, "VISUAL_WORDS", 4)
    rng = np.random.default_rng(5)
    sets, sizes = smooth_grids(40, 4, 3, rng), np.full(40, 16)
    sizes[3] = 15
    pooling = fit_pooling(reader(sets, sizes), 40)
    assert len(pooling.mean) == pooled_size(3, len(pooling.words), with_quadrants=False)


def test_quadrants_of_sets_that_are_no_grid_are_zeros():
    rng = np.random.default_rng(7)
    words, sets = rng.standard_normal((2, 3)), rng.standard_normal((2, 8, 3))
    numbers = set_features.pooled_numbers(sets, np.full(2, 8), words, np.float32(1), True)
    assert numbers.shape == (2, pooled_size(3, 2, with_quadrants=True))
    assert not numbers[:, -12:].any() and numbers[:, :-12].all()


def test_clusters_find_separate_groups():
    rng = np.random.default_rng(6)
    groups = np.eye(4)[rng.integers(0, 4, 200)] * 20
    centres = cluster((groups + rng.standard_normal((200, 4))).astype(np.float32), 12, rng)
    nearest = np.linalg.norm(centres[:, None] - np.eye(4) * 20, axis=2).min(axis=0)
    assert nearest.max() < 4


TOKENS = [np.array(t) for t in ([1, 5, 5, 2], [1, 5, 7, 2], [1, 7, 9, 2], [1, 9, 2], [1, 3, 2])]


def test_weighted_counts_equal_a_loop(monkeypatch):
    monkeypatch.setattr(word_features, "MIN_CAPTIONS", 2)
    rarity = fit_words(TOKENS).rarity
    found = weighted_counts(word_counts(TOKENS), rarity).toarray()
    captions_with = Counter(word for tokens in TOKENS for word in set(tokens.tolist()))
    words = sorted(word for word, count in captions_with.items() if count >= 2)
    assert words == [1, 2, 5, 7, 9]
    assert not np.delete(found, words, axis=1).any()
    for row, tokens in zip(found[:, words], TOKENS, strict=True):
        counts = [tokens.tolist().count(word) for word in words]
        expected = [
            np.sqrt(count) * np.log(5 / captions_with[word])
            for count, word in zip(counts, words, strict=True)
        ]
        np.testing.assert_allclose(row, np.array(expected) / max(np.linalg.norm(expected), 1e-12))
    assert not found[:, :2].any() and not found[4].any()  # markers, and a caption of a rare word


def test_word_rows_keep_inner_products(monkeypatch):
    monkeypatch.setattr(word_features, "MIN_CAPTIONS", 1)
    fitted = fit_words(TOKENS)
    rows = word_rows(TOKENS, fitted)
    weights = weighted_counts(word_counts(TOKENS), fitted.rarity).toarray()
    assert rows.shape == (5, 6)
    found = rows[np.array([4, 0, 2])]
    np.testing.assert_allclose(
        found @ found.T, (weights @ weights.T)[[4, 0, 2]][:, [4, 0, 2]], atol=1e-6
    )
    monkeypatch.setattr(word_features, "DIMENSIONS", 2)
    values = np.linalg.svd(weights)[1]
    assert np.linalg.norm(word_rows(TOKENS, fit_words(TOKENS))[np.arange(5)]) == pytest.approx(
        np.linalg.norm(values[:2]), rel=1e-5
    )


def test_captions_without_a_common_word_are_zeros():
    rare = [np.array([4]), np.array([], int)]
    assert not word_rows(rare, fit_words(rare))[np.arange(2)].any()


def data_set(images, tokens):
    features = RegionFeatures.from_array(images, "images")
    return Pairs(features, tokens, np.repeat(np.arange(len(images)), 2))


def test_vectors_stay_as_they_are_and_are_checked():
    rng = np.random.default_rng(7)
    images, captions = rng.random((6, 5), np.float32), rng.random((12, 4), np.float32)
    dataset = data_set(images, RegionFeatures.from_array(captions, "captions"))
    at = np.array([4, 1])
    np.testing.assert_array_equal(image_vectors(dataset).rows[at], images[at])
    np.testing.assert_array_equal(caption_vectors(dataset).rows[at], captions[at])
    assert image_vectors(dataset).rows.shape == (6, 5) and caption_vectors(dataset).rows.shape == (
        12,
        4,
    )
    images[1, 3] = np.nan
    with pytest.raises(DataError, match=r"images: row 1: found nan \(region 0, dimension 3\)"):
        image_vectors(data_set(images, [])).rows[at]


def test_vectors_depend_on_no_pairing(monkeypatch):
    monkeypatch.setattr(set_features, "VISUAL_WORDS", 4)
    rng = np.random.default_rng(8)
    tokens = [rng.integers(0, 9, 6) for _ in range(60)]
    dataset = data_set(rng.random((30, 4, 5), np.float32), tokens)
    swapped = replace(dataset, image_of=rng.permutation(dataset.image_of))
    for vectors in (image_vectors, caption_vectors):
        rows = np.arange(30)
        np.testing.assert_array_equal(vectors(dataset).rows[rows], vectors(swapped).rows[rows])
