"""Mismatch rates of the values of a column against known truth."""

import numpy as np
import pytest
from scipy.stats import norm

from l2rm_jax.audit.rates_by import MISSING, GroupRate, rate_lines, rates_by
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import judge_pairs
from l2rm_jax.judging.rate import Rate
from tests.judging.synthetic import make_pairs

TRUTH = {"clean": 0.0, "dirty": 0.4, "fair": 0.1}
IMAGES, CAPTIONS, APART = 80, 5, 3.0


def simulate(rates, seed):
    """Return the column, posterior, information and images of pairs with whole sets swapped."""
    rng = np.random.default_rng(seed)
    image = np.repeat(np.arange(len(rates) * IMAGES), CAPTIONS)
    value = np.array(list(rates)).repeat(IMAGES)
    share = np.array([rates[name] for name in value])
    wrong = (rng.random(len(value)) < share)[image]
    information = rng.standard_normal(len(image)) + APART * ~wrong
    of_random, of_matched = norm.pdf(information), norm.pdf(information - APART)
    overall = share.mean()
    posterior = overall * of_random / (overall * of_random + (1 - overall) * of_matched)
    return value[image], posterior, information, image, overall


def judged(rates, seed):
    value, posterior, information, image, overall = simulate(rates, seed)
    rate = Rate(overall, overall, overall)
    return rates_by(value, posterior, information=information, image_of=image, rate=rate)


@pytest.fixture(scope="module")
def columns():
    return [{each.value: each for each in judged(TRUTH, seed)} for seed in range(200)]


def test_rates_are_unbiased_where_the_mean_posterior_is_not(columns):
    for name, truth in TRUTH.items():
        assert np.mean([column[name].estimate for column in columns]) == pytest.approx(
            truth, abs=0.01
        )
    value, posterior, *_ = simulate(TRUTH, 0)
    assert posterior[value == "clean"].mean() > 0.01


def test_all_intervals_of_a_column_cover_the_truth_together(columns):
    covered = [
        all(column[name].low <= truth <= column[name].high for name, truth in TRUTH.items())
        for column in columns
    ]
    assert 0.85 <= np.mean(covered) <= 0.99


def test_only_values_with_other_rates_differ(columns):
    assert (
        np.mean([column["clean"].differs and column["dirty"].differs for column in columns]) > 0.9
    )
    equal = [judged({"a": 0.1, "b": 0.1, "c": 0.1}, seed) for seed in range(50)]
    assert np.mean([any(each.differs for each in column) for column in equal]) <= 0.14


def test_the_uncertainty_of_the_rate_of_all_pairs_widens_the_intervals():
    value, posterior, information, image, overall = simulate(TRUTH, 1)
    sure, unsure = (
        rates_by(value, posterior, information=information, image_of=image, rate=rate)
        for rate in (Rate(overall, overall, overall), Rate(overall, overall - 0.05, overall + 0.05))
    )
    for first, second in zip(sure, unsure, strict=True):
        assert first.estimate == second.estimate
        assert second.low <= first.low <= first.high < second.high


def test_the_order_of_pairs_changes_nothing():
    value, posterior, information, image, overall = simulate(TRUTH, 2)
    information = information.round(1)  # with ties
    rows = np.random.default_rng(0).permutation(len(value))
    first, second = (
        rates_by(
            value[some],
            posterior[some],
            information=information[some],
            image_of=image[some],
            rate=Rate(overall, 0.1, 0.2),
        )
        for some in (slice(None), rows)
    )
    assert [each.value for each in first] == [each.value for each in second]
    np.testing.assert_allclose([x[1:5] for x in first], [x[1:5] for x in second], atol=2e-6)


def test_small_and_missing_values():
    value, posterior, information, image, overall = simulate(TRUTH, 3)
    value = value.astype(object)
    value[:8], value[10:15] = "None", [None, np.nan, "", float("nan"), None]
    *told, small, missing = rates_by(
        value, posterior, information=information, image_of=image, rate=Rate(overall, 0.15, 0.2)
    )
    assert [each.value for each in told] == ["dirty", "fair", "clean"]
    assert (small.value, small.pairs, missing.value, missing.pairs) == ("None", 8, MISSING, 5)
    assert small.unreliable_reason and missing.unreliable_reason
    assert not any(each.unreliable_reason for each in told)
    last = rate_lines("source", [*told, small, missing])[-1]
    assert "cannot tell" in last and "5 to 8 pairs" in last and f"None, {MISSING}" in last


def test_few_images_are_too_few_however_many_captions_they_have():
    value, posterior, information, image, overall = simulate({"a": 0.5, "b": 0.5}, 4)
    some = (value == "b") | (image < 6)
    found = rates_by(
        value[some],
        posterior[some],
        information=information[some],
        image_of=image[some],
        rate=Rate(overall, overall, overall),
    )
    assert [(x.value, x.pairs, x.unreliable_reason != "") for x in found] == [
        ("b", IMAGES * CAPTIONS, False),
        ("a", 6 * CAPTIONS, True),
    ]


def test_a_constant_column_has_the_rate_of_all_pairs():
    _, posterior, information, image, _ = simulate(TRUTH, 5)
    rate = Rate(float(posterior.mean()), 0.12, 0.22)
    [only] = rates_by(
        [7] * len(image), posterior, information=information, image_of=image, rate=rate
    )
    assert only.value == "7" and only.estimate == pytest.approx(rate.estimate, abs=1e-4)
    assert only.low < 0.13 and only.high > 0.2 and not only.differs


def test_placeholders_are_mismatched():
    value, posterior, information, image, overall = simulate(TRUTH, 6)
    half = np.flatnonzero(value == "clean")[::2]
    posterior[half], information[half] = 1, np.nan
    found = rates_by(
        value, posterior, information=information, image_of=image, rate=Rate(overall, 0.1, 0.2)
    )
    assert found[0].value == "clean" and found[0].estimate == pytest.approx(0.5, abs=0.01)
    assert found[0].low == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("rate", [0.0, 1.0])
@pytest.mark.filterwarnings("error")
def test_extreme_rates(rate):
    information = np.random.default_rng(0).standard_normal(400)
    for low, high in ((rate, rate), (0.0, 1.0)):
        found = rates_by(
            ["a", "b"] * 200,
            np.full(400, rate),
            information=information,
            image_of=np.arange(400),
            rate=Rate(rate, low, high),
        )
        assert all(0 <= each.low <= each.estimate <= each.high <= 1 for each in found)
        assert not any(each.differs for each in found)


def test_lines():
    rates = [
        GroupRate("shop\n\x1b[31mb", 812, 0.41, 0.35, 0.47, "", True),
        *(GroupRate(f"s{i}", 50, 0.02, 0.0, 0.031, "", False) for i in range(4)),
        GroupRate("x" * 500, 3, 0.5, 0.0, 1.0, "found 3 pairs, expected at least 20", False),
    ]
    title, first, second, more, small = rate_lines("source", rates, most=2)
    assert "source" in title and "90%" in title
    assert "41% (35-47%) of 812 pairs" in first and first.isprintable() and "differs" in first
    assert "2.0% (0.0-3.1%) of 50 pairs" in second and "differs" not in second
    assert more.startswith("3 more") and "1 value with 3 pairs" in small and len(small) < 120


@pytest.mark.slow
@pytest.mark.parametrize(("captions", "noise"), [(1, 1.0), (3, 0.25)])
def test_sources_of_a_real_judgement(captions, noise):
    images, vectors, own, _ = make_pairs(600, captions, 0.0, noise=noise)
    source = np.where(own % 2, "b", "a")
    rows = np.random.default_rng(1).permutation(np.flatnonzero(source == "b"))
    moved = rows[: int(0.4 * len(rows))]
    stored = own.copy()
    stored[moved] = own[np.roll(moved, 1)]
    found = judge_pairs(Pairs(images, vectors, stored))
    b, a = rates_by(
        source,
        found.posterior,
        information=found.information,
        image_of=found.image_of,
        rate=found.rate,
    )
    truth = (stored != own)[source == "b"].mean()
    assert (a.value, b.value) == ("a", "b") and a.differs and b.differs
    assert a.low == 0 and a.estimate < 0.02 and a.high < 0.05
    assert b.low <= truth <= b.high and b.estimate == pytest.approx(truth, abs=0.07)
