"""The share of pairs of scores that stand in the right order."""

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from l2rm_jax.auroc import BINS, auroc, binned_auroc
from l2rm_jax.errors import DataError


@pytest.mark.parametrize("scale", [1e-3, 1, 1e4])
def test_it_is_the_share_of_a_loop_over_all_pairs(scale):
    rng = np.random.default_rng(0)
    scores = (rng.standard_normal(90) + 0.8) * scale
    negatives = (rng.standard_normal(70) * scale).astype(np.float32)
    negatives[:9] = scores[:9] = 2 * scale  # equal ones count one half
    total = sum((a > b) + (a == b) / 2 for a in scores for b in negatives)
    assert binned_auroc(scores, negatives) == pytest.approx(total / (90 * 70), abs=2 / BINS)
    assert binned_auroc(-scores, -negatives) == pytest.approx(1 - binned_auroc(scores, negatives))


def test_the_ends():
    assert binned_auroc(np.array([3.0, 4.0]), np.array([1.0])) == 1
    assert binned_auroc(np.array([-3.0]), np.array([1.0, 2.0])) == 0
    assert binned_auroc(np.full(3, 5.0), np.full(2, 5.0)) == 0.5


@pytest.mark.parametrize("wrong", [np.zeros(0), np.array([0.0, np.nan]), np.array([np.inf])])
def test_nothing_and_numbers_that_are_not_finite_are_refused(wrong):
    for scores in ((wrong, np.zeros(2)), (np.zeros(2), wrong)):
        with pytest.raises(DataError, match="expected at least one score and only finite ones"):
            binned_auroc(*scores)


@pytest.mark.parametrize("levels", [3, 10, 10_000])
def test_auroc_equals_the_mann_whitney_statistic(levels):
    rng = np.random.default_rng(levels)
    scores = rng.integers(0, levels, 200) / levels
    positive = rng.random(200) < 0.3
    statistic = mannwhitneyu(scores[positive], scores[~positive]).statistic
    expected = statistic / (positive.sum() * (~positive).sum())
    assert auroc(scores, positive) == pytest.approx(expected)
