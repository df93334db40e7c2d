"""The most probable path, against a plain search row by row."""

import numpy as np
import pytest

from l2rm_jax.joins.path import WIDTH, all_active, best_path, pieces, runs, two_states


def row_by_row(gains: np.ndarray, enter: np.ndarray, active: np.ndarray) -> float:
    """Largest value of any path, by Viterbi's recursion."""
    value = np.full(len(gains), -np.inf)
    value[0] = 0
    for row in range(gains.shape[1]):
        allowed = np.isin(np.arange(len(gains)), active[row // WIDTH])
        value = np.where(allowed, np.maximum(value, value.max() - enter) + gains[:, row], -np.inf)
    return value.max()


def value_of(labels: np.ndarray, gains: np.ndarray, enter: np.ndarray) -> float:
    entered = labels[np.append(labels[0] != 0, np.diff(labels) != 0)]
    return gains[labels, np.arange(len(labels))].sum() - enter[entered].sum()


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 500])
@pytest.mark.parametrize("seed", range(3))
def test_the_path_has_the_largest_value(rows, seed):
    rng = np.random.default_rng(seed)
    states = 7
    steps = rng.standard_normal((states, rows // 20 + 1)).repeat(20, axis=1)[:, :rows]
    gains = (steps + rng.standard_normal((states, rows))).astype(np.float32)
    enter = rng.uniform(0, 6, states)
    active = all_active(states, rows)
    for block in active[1:]:  # some states are not possible everywhere
        block[rng.integers(2, states)] = -1
    labels = best_path(gains, enter, active)
    assert np.isin(labels, np.arange(states)).all()
    assert all(label in active[row // WIDTH] for row, label in enumerate(labels))
    np.testing.assert_allclose(
        value_of(labels, gains, enter), row_by_row(gains, enter, active), rtol=1e-4
    )


def test_two_states_hold_where_the_ratio_says_so():
    gain = np.full(300, -1.0)
    gain[100:140] = 1.0
    gain[120] = -1.0
    assert runs(two_states(gain, 5.0)) == [(100, 140)]
    assert not two_states(np.full(50, -1.0), 5.0).any()


def test_pieces_cover_all_rows():
    assert pieces(np.array([0, 0, 2, 2, 1])) == [(0, 2), (2, 4), (4, 5)]
