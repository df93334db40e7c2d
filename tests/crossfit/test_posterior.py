"""Posterior and rate on mixtures made by hand, of which both are known."""

import numpy as np
import pytest
from l2rm_jax.crossfit.posterior import calibrate, calibrate_counts

from l2rm_jax.errors import DataError
from l2rm_jax.judging.histogram import Histogram, separation

N = 20_000


def normal_mixture(rate, mean, deviation, seed=0, n=N):
    """Matched scores N(mean, deviation), mismatched and negative ones N(-1, 1.5)."""
    rng = np.random.default_rng(seed)
    mismatched = rng.random(n) < rate
    scores = np.where(mismatched, rng.normal(-1, 1.5, n), rng.normal(mean, deviation, n))
    density = [
        np.exp(-(((scores - m) / d) ** 2) / 2) / d for m, d in ((mean, deviation), (-1, 1.5))
    ]
    matched = (1 - rate) * density[0] / ((1 - rate) * density[0] + rate * density[1])
    return scores, rng.normal(-1, 1.5, 5 * n), mismatched, matched


@pytest.mark.parametrize("rate", [0.05, 0.4, 0.8])
@pytest.mark.parametrize("mean, deviation", [(2, 1.5), (3, 1.0)], ids=["line", "curve"])
def test_rate_and_posterior_of_normal_scores(rate, mean, deviation):
    scores, negatives, mismatched, expected = normal_mixture(rate, mean, deviation)
    fitted = calibrate(scores, negatives)
    found = fitted.posterior(scores)
    assert abs(fitted.rate - mismatched.mean()) < 0.015
    assert abs(found - expected).mean() < 0.015
    assert abs(1 - found.mean() - fitted.rate) < 1e-3  # the fixed point of EM
    assert (np.diff(found[np.argsort(scores)]) >= 0).all()


def test_ratio_of_densities_that_are_not_normal():
    """Gamma scores, whose log ratio is a line: shapes are never assumed."""
    rng = np.random.default_rng(1)
    scores = np.concatenate([rng.gamma(5, 1 / 0.6, 60_000), rng.gamma(5, 0.5, 40_000)])
    fitted = calibrate(scores, rng.gamma(5, 0.5, 500_000))
    assert abs(fitted.rate - 0.4) < 0.02
    at = np.array([2.0, 4.0])
    slope = np.diff(fitted.log_ratio(at)) / 2
    assert abs(slope - (2 - 0.6)) < 0.15  # of exp(-0.6 s) over exp(-2 s)
    assert abs(fitted.log_ratio(at)[0] - (5 * np.log(0.6 / 2) + 1.4 * 2)) < 0.2


def test_all_matched_and_none():
    scores, negatives, *_ = normal_mixture(0, 3, 1)
    assert calibrate(scores, negatives).rate < 0.005
    scores, negatives, *_ = normal_mixture(1, 3, 1)
    assert calibrate(scores, negatives).rate > 0.97


def test_several_histograms_equal_single_fits():
    scores, negatives, *_ = normal_mixture(0.3, 2, 1.5, n=2000)
    histogram = Histogram.over(scores, negatives)
    halves = np.stack([histogram.count(scores[:1000]), histogram.count(scores[1000:])])
    below = histogram.count(negatives)
    together = calibrate_counts(histogram.centres, halves, below)
    for number, half in enumerate(halves):
        alone = calibrate_counts(histogram.centres, half[None], below)
        assert abs(alone.rate[0] - together.rate[number]) < 1e-3


def test_few_and_equal_scores():
    fitted = calibrate(np.array([3.0, 2.0, -1.0]), np.array([-1.0, -2.0]))
    assert np.isfinite(fitted.posterior(np.array([3.0, -1.0]))).all()
    assert 0 <= calibrate(np.zeros(5), np.zeros(9)).rate <= 1


@pytest.mark.parametrize("scores", [np.array([]), np.array([1.0, np.nan])])
def test_scores_that_are_refused(scores):
    with pytest.raises(DataError, match="expected at least one score and only finite ones"):
        calibrate(scores, np.zeros(3))


def test_separation_counts_ordered_pairs():
    rng = np.random.default_rng(2)
    above, below = rng.integers(0, 9, 40).astype(float), rng.integers(-3, 6, 30).astype(float)
    ordered = (above[:, None] > below).mean() + (above[:, None] == below).mean() / 2
    assert separation(above, below) == pytest.approx(ordered)
