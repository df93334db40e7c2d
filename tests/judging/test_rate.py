"""Rates and probabilities against known truth and plain formulas."""

import numpy as np
import pytest
from scipy.stats import norm

from l2rm_jax.judging.rate import (
    density_ratio,
    estimate_rate,
    false_alarms,
    limit_to_count,
    scale_to_mean,
    told_apart,
)


def make_scores(rate, seed, pairs=4000, apart=4.0):
    rng = np.random.default_rng(seed)
    wrong = rng.random(pairs) < rate
    return np.where(wrong, 0.0, -apart) + rng.standard_normal(pairs), wrong


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
def test_rate_of_a_mixture(rate):
    suspicion, wrong = make_scores(rate, 0)
    null = np.random.default_rng(1).standard_normal((4000, 10))
    found = estimate_rate(suspicion, null, np.arange(4000), seed=0)
    assert found.estimate == pytest.approx(wrong.mean(), abs=0.02)
    assert found.low <= found.estimate <= found.high


def test_intervals_cover_the_truth():
    null = np.random.default_rng(9).standard_normal((4000, 10))
    covered = []
    for seed in range(40):
        suspicion, _ = make_scores(0.2, seed)
        found = estimate_rate(suspicion, null, np.arange(4000), seed=0)
        covered.append(found.low <= 0.2 <= found.high)
    assert np.mean(covered) >= 0.8


def test_groups_that_move_together_widen_the_interval():
    rng = np.random.default_rng(0)
    wrong = np.repeat(rng.random(400) < 0.3, 5)
    suspicion = np.where(wrong, 0.0, -4.0) + rng.standard_normal(2000)
    null = rng.standard_normal((2000, 5))
    alone = estimate_rate(suspicion, null, np.arange(2000), seed=0)
    together = estimate_rate(suspicion, null, np.repeat(np.arange(400), 5), seed=0)
    assert together.high - together.low > alone.high - alone.low


@pytest.mark.parametrize("apart", [1.5, 2.0, 3.0])
def test_matched_pairs_that_score_like_random_ones_do_not_raise_the_rate(apart):
    """With lambda 0.5 only, they would add a tenth or a twentieth to the rate."""
    pairs, errors, covered = 10_000, [], []
    null = np.random.default_rng(1).standard_normal((pairs, 5))
    for seed in range(12):
        suspicion, wrong = make_scores(0.2, seed, pairs, apart)
        found = estimate_rate(suspicion, null, np.arange(pairs), seed=0)
        errors.append(found.estimate - wrong.mean())
        covered.append(found.low <= wrong.mean() <= found.high)
    naive = 0.8 * 2 * norm.cdf(-apart)
    assert np.mean(errors) < max(0.9 * naive, 0.005)
    assert apart < 3 or np.mean(covered) >= 0.8


@pytest.mark.parametrize("rate", [0.0, 0.4, 0.8])
def test_auroc_of_what_is_left_is_that_of_the_matched_pairs(rate):
    """Comparison with the formula for normal scores, minus a standard error."""
    pairs = 20_000
    null = np.random.default_rng(1).standard_normal((pairs, 5))
    for apart in (3.0, 1.0, 0.5):
        suspicion, wrong = make_scores(rate, 0, pairs, apart)
        auroc = told_apart(suspicion, null, np.arange(pairs), wrong.mean())
        expected = norm.cdf(apart / np.sqrt(2))
        assert expected - 0.05 < auroc < expected + 0.02


def test_pairs_that_are_suspicious_together_prove_less():
    suspicion, wrong = make_scores(0.2, 0, apart=1.5)
    suspicion, rate = suspicion.repeat(5), wrong.mean()
    null = np.random.default_rng(1).standard_normal(20_000)
    alone = told_apart(suspicion, null, np.arange(20_000), rate)
    assert told_apart(suspicion, null, np.arange(20_000) // 5, rate) < alone - 0.001


def test_posterior_is_calibrated_and_monotone():
    suspicion, wrong = make_scores(0.3, 0, 20_000)
    null = np.random.default_rng(1).standard_normal((20_000, 5))
    posterior = density_ratio(suspicion, null).posterior(suspicion, wrong.mean())
    order = np.argsort(suspicion)
    assert (np.diff(posterior[order]) >= 0).all()
    for low, high in ((0.05, 0.4), (0.4, 0.8), (0.8, 1.01)):
        some = (posterior >= low) & (posterior < high)
        assert posterior[some].mean() == pytest.approx(wrong[some].mean(), abs=0.1)


def test_scaled_posteriors_keep_their_order_and_have_the_mean():
    posterior = np.random.default_rng(0).random(1000) ** 3
    for mean in (0.001, 0.1, 0.9):
        scaled = scale_to_mean(posterior, mean)
        assert mean - 0.5 / 1000 <= scaled.mean() <= mean * (1 + 1e-6)
        assert (np.diff(scaled[np.argsort(posterior)]) >= 0).all()
    assert (scale_to_mean(posterior, 0) == 0).all()


def test_no_probability_is_higher_than_its_block_carries():
    for sure, others in ((1, 9), (10, 90), (200, 300)):
        posterior = np.concatenate([np.full(sure, 1 - 1e-9), np.full(others, 0.01)])
        limited = limit_to_count(posterior)
        np.testing.assert_allclose(limited[:sure], (sure + 0.5) / (sure + 1), atol=1e-6)
        np.testing.assert_array_equal(limited[sure:], posterior[sure:])
    assert limit_to_count(np.zeros(5)).max() == 0 and len(limit_to_count(np.zeros(0))) == 0


def test_false_alarms_are_running_means():
    posterior = np.array([0.2, 0.9, 1.0, 0.5])
    order = np.array([2, 1, 3, 0])
    expected = np.array([1.4 / 4, 0.1 / 2, 0.0, 0.6 / 3])
    np.testing.assert_allclose(false_alarms(posterior, order), expected)
