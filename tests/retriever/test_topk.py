"""The blocked search against sorting all scores."""

import numpy as np
import pytest

from l2rm_jax.retriever import search


def naive(scores: np.ndarray, k: int):
    """Columns of the k highest of each row, of equal ones the first, and the scores."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, axis=1)


@pytest.mark.parametrize("count", [1, 9, 128, 300, 1100])
@pytest.mark.parametrize("metric", ["ip", "l2sq"])
def test_it_finds_what_sorting_finds(count, metric, monkeypatch):
    monkeypatch.setattr(search, "BLOCK_BYTES", 512 * 2 * 3 * 4)  # blocks of 512 of two networks
    monkeypatch.setattr(search, "SCORES", 3 * 512)  # of three queries, or more in a smaller gallery
    rng = np.random.default_rng(count)
    # Whole numbers: products are exact in any order of summation, and many scores are equal.
    queries = [rng.integers(-2, 3, (4, 3)).astype(np.float32) for _ in range(2)]
    gallery = [rng.integers(-2, 3, (count, 3)).astype(np.float32) for _ in range(2)]
    if metric == "ip":
        scores = sum(q @ g.T for q, g in zip(queries, gallery, strict=True)) / 2
    else:
        queries, gallery = queries[:1], gallery[:1]
        squared = ((queries[0][:, None] - gallery[0]) ** 2).sum(axis=2)
        scores = -np.sqrt(np.maximum(squared, np.float32(1e-6)))
    compared = []
    for k in (1, min(7, count)):
        rows, found = search.top_of_vectors(queries, gallery, metric, k, compared.append)
        expected = naive(scores, k)
        np.testing.assert_array_equal(rows, expected[0])
        np.testing.assert_allclose(found, expected[1], rtol=1e-6)
    assert sum(compared) == 2 * count


def test_blocks_of_scores_give_the_same():
    scores = np.random.default_rng(0).integers(0, 9, (5, 70)).astype(np.float32)
    blocks = ((start, scores[:, start : start + 16]) for start in range(0, 70, 16))
    for found, expected in zip(search.top_of_blocks(blocks, 6), naive(scores, 6), strict=True):
        np.testing.assert_array_equal(found, expected)
