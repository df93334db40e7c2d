"""Losses with margins per pair and with k negatives, and predictions, against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses import ranking

SIZE, MARGIN = 12, 0.2
RNG = np.random.default_rng(0)
SIMS = RNG.uniform(0, 0.9, (SIZE, SIZE)).astype(np.float32)
MARGINS = RNG.uniform(0, 0.4, (SIZE, SIZE)).astype(np.float32)
LABELS = np.linspace(0, 1, 9).astype(np.float32)


def hinges(i: int, margin=lambda image, caption: MARGIN) -> tuple[list[float], list[float]]:
    """Hinges of pair i in its row and in its column."""
    others = [j for j in range(SIZE) if j != i]
    row = [max(0, margin(i, j) + SIMS[i, j] - SIMS[i, i]) for j in others]
    return row, [max(0, margin(j, i) + SIMS[j, i] - SIMS[i, i]) for j in others]


def test_a_vector_of_margins_belongs_to_the_right_pairs():
    vector = MARGINS[0]
    expected = sum(
        max(row) + max(column)
        for i in range(SIZE)
        for row, column in [hinges(i, lambda image, caption, i=i: vector[i])]
    )
    found = ranking.triplet_hardest(SIMS, margin=jnp.asarray(vector))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_a_matrix_of_margins_holds_one_for_each_image_and_caption():
    margin = lambda image, caption: MARGINS[image, caption]  # noqa: E731
    expected = sum(
        max(row) + max(column) for i in range(SIZE) for row, column in [hinges(i, margin)]
    )
    found = ranking.triplet_hardest(SIMS, margin=jnp.asarray(MARGINS))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    equal = ranking.triplet_hardest(SIMS, margin=jnp.full((SIZE, SIZE), MARGIN))
    assert equal == ranking.triplet_hardest(SIMS, margin=MARGIN)


@pytest.mark.parametrize("shape", [(SIZE, 1), (1,), (SIZE + 1,)])
def test_margins_of_another_size_are_refused(shape):
    with pytest.raises(ValueError, match=r"margin: .*\(12, 12\)"):
        ranking.triplet_hardest(SIMS, margin=jnp.zeros(shape))


def test_the_number_of_hardest_negatives_may_be_traced():
    compiled = jax.jit(lambda k: ranking.hardest_k(SIMS, k, margin=MARGIN))
    for k in (1, 5, SIZE - 1, 100):
        count = min(k, SIZE - 1)
        expected = [
            sum(sum(sorted(side)[-count:]) for side in hinges(i)) / count for i in range(SIZE)
        ]
        np.testing.assert_allclose(compiled(k), expected, rtol=1e-5)
    assert compiled._cache_size() == 1
    largest = jnp.sum(ranking.hardest_k(SIMS, 1, margin=MARGIN))
    assert float(largest) == pytest.approx(float(ranking.triplet_hardest(SIMS, margin=MARGIN)))


@pytest.mark.parametrize(("share", "count"), [(0.3, 3), (0.999, 11), (1.0, 12), (0.01, 1)])
def test_only_the_smallest_values_count(share, count):
    values = SIMS[0]
    total, gradient = jax.jit(jax.value_and_grad(lambda x: ranking.smallest(x, share)))(values)
    assert float(total) == pytest.approx(np.sort(values)[:count].sum(), rel=1e-6)
    np.testing.assert_array_equal(gradient, values <= np.sort(values)[count - 1])


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(ValueError, match=f"found {share}"):
        ranking.smallest(SIMS[0], share)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("exponential", (10**LABELS - 1) / 9),
        ("linear", LABELS),
        ("sin", np.sin(np.pi * LABELS - np.pi / 2) / 2 + 0.5),
    ],
)
def test_soft_margins_rise_to_the_full_margin(kind, expected):
    margins = ranking.soft_margin(LABELS, margin=MARGIN, kind=kind)
    np.testing.assert_allclose(margins, MARGIN * expected, atol=1e-7)
    assert (np.diff(margins) > 0).all()


def test_prediction_compares_with_the_best_pairs_of_the_batch():
    kept = [max(0, MARGIN - sum(map(sum, hinges(i))) / SIZE / 2) for i in range(SIZE)]
    np.testing.assert_allclose(ranking.unviolated_margin(SIMS, margin=MARGIN), kept, atol=1e-6)
    best = np.mean(sorted(kept)[-2:])  # a tenth of 12, and one
    assert 0 < best < max(kept)
    expected = np.minimum(np.array(kept) / best, 1)
    np.testing.assert_allclose(ranking.prediction(SIMS, margin=MARGIN), expected, atol=1e-5)


def test_prediction_is_zero_where_no_pair_wins():
    wrong = np.ones((SIZE, SIZE), np.float32) - np.eye(SIZE, dtype=np.float32)
    assert not np.asarray(ranking.prediction(wrong, margin=MARGIN)).any()
