"""The largest share of mismatched pairs, against made mixtures and plain loops."""

import numpy as np
import pytest

from l2rm_jax.judging import rate as rates
from l2rm_jax.judging.rate import estimate_rate, most_mismatched

MATCHED, HARD = -4.0, -2.0  # mean suspicion; random pairs have 0


def made(rng, random=0.0, hard=0.0, pairs=6000, of_hard=HARD):
    """Suspicion of pairs, with given shares of random and of hard mismatches."""
    kind = rng.choice(3, pairs, p=[1 - random - hard, random, hard])
    suspicion = np.array([MATCHED, 0.0, of_hard])[kind] + rng.standard_normal(pairs)
    return suspicion, kind > 0


def most(suspicion, rng, trust=None, group=None, hard=None):
    pairs = len(suspicion)
    null = rng.standard_normal((pairs, 5))
    hard = HARD + rng.standard_normal(pairs) if hard is None else hard
    group = np.arange(pairs) if group is None else group
    trust = np.ones(pairs) if trust is None else trust
    rate = estimate_rate(suspicion, null, group, seed=0)
    return most_mismatched(suspicion, null, hard, trust, group, rate), rate


@pytest.mark.parametrize(("random", "hard"), [(0.0, 0.0), (0.0, 0.3), (0.2, 0.0), (0.2, 0.2)])
def test_bounds_hold_the_truth_of_mixtures(random, hard):
    rng, held, above = np.random.default_rng(0), [], []
    for _ in range(60):
        suspicion, wrong = made(rng, random, hard, pairs=3000)
        high, rate = most(suspicion, rng)
        held.append(rate.low <= wrong.mean() <= high)
        above.append(high - wrong.mean())
    assert np.mean(held) >= 0.85
    assert np.mean(above) < 0.12  # matched pairs above the thresholds


def test_mismatches_easier_to_tell_than_the_known_ones_are_within():
    rng = np.random.default_rng(1)
    for _ in range(10):
        suspicion, wrong = made(rng, hard=0.3, of_hard=HARD + 0.8)
        high, _ = most(suspicion, rng)
        assert wrong.mean() <= high < 1


def test_harder_mismatches_are_not_within():
    rng = np.random.default_rng(2)
    suspicion, wrong = made(rng, hard=0.3, of_hard=MATCHED)
    assert most(suspicion, rng)[0] < wrong.mean()


def test_known_mismatches_without_trust_do_not_count():
    rng = np.random.default_rng(3)
    suspicion, _ = made(rng, 0.1, 0.2)
    trust = (rng.random(6000) < 0.7).astype(float)
    clean = HARD + rng.standard_normal(6000)
    spoilt = np.where(trust > 0, clean, 9.0)
    found = [
        most(suspicion, np.random.default_rng(4), trust, hard=hard)[0] for hard in (clean, spoilt)
    ]
    assert found[0] == found[1]
    assert most(suspicion, np.random.default_rng(4), hard=spoilt)[0] < found[0]


def test_upper_end_against_a_bootstrap_of_groups(monkeypatch):
    """One threshold; groups of five pairs that are mismatched together."""
    monkeypatch.setattr(rates, "_TAILS", (0.3,))
    rng = np.random.default_rng(5)
    kind = np.repeat(rng.choice(3, 400, p=[0.6, 0.2, 0.2]), 5)
    suspicion = np.array([MATCHED, 0.0, HARD])[kind] + rng.standard_normal(2000)
    group, null = np.repeat(np.arange(400), 5), rng.standard_normal((2000, 5))
    hard, trust = HARD + rng.standard_normal(2000), rng.random(2000)
    rate = estimate_rate(suspicion, null, group, seed=0)
    found = most_mismatched(suspicion, null, hard, trust, group, rate)

    by_suspicion = np.argsort(-hard)
    threshold = hard[
        by_suspicion[np.searchsorted(np.cumsum(trust[by_suspicion]), 0.3 * trust.sum())]
    ]
    limits = np.median(null), threshold

    def estimate(rows):
        of_null = [np.mean(null > limit) for limit in limits]
        of_hard = [np.average(hard[rows] > limit, weights=trust[rows]) for limit in limits]
        shares = [np.mean(suspicion[rows] > limit) for limit in limits]
        return np.linalg.solve(np.transpose([of_null, of_hard]), shares).sum()

    draws = [
        estimate((rng.integers(0, 400, 400)[:, None] * 5 + np.arange(5)).ravel())
        for _ in range(3000)
    ]
    centre = estimate(np.arange(2000))
    assert found - centre == pytest.approx(1.645 * np.std(draws), rel=0.06)
    assert found == pytest.approx(np.quantile(draws, 0.95), abs=0.01)


def test_the_bound_is_between_the_interval_and_one():
    rng = np.random.default_rng(6)
    everything = rng.standard_normal(500)  # all as suspicious as random ones
    high, rate = most(everything, rng)
    assert rate.high <= high <= 1
