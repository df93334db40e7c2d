"""The split into matched and mismatched pairs, its quality and its warnings."""

from dataclasses import replace

import numpy as np
import pytest

from l2rm_jax.errors import DataError
from l2rm_jax.methods.split import split_pairs, split_quality, warmup_pairs
from tests.data.samples import PAIRS, make_dataset


def test_quality_compares_the_split_with_the_truth():
    called = np.array([True, True, True, False, False])
    truth = np.array([True, True, False, True, False])
    report = split_quality(1.0 - called, truth, called)
    assert report["split_accuracy"] == pytest.approx(3 / 5)
    assert report["split_precision"] == pytest.approx(2 / 3)
    assert report["split_recall"] == pytest.approx(2 / 3)


def test_a_warmup_trains_what_cross_fitting_calls_matched():
    posterior = np.linspace(0.3, 0.8, PAIRS)
    dataset = replace(make_dataset(), posterior=posterior)
    np.testing.assert_array_equal(warmup_pairs("loss", dataset), np.arange(PAIRS))
    matched = np.flatnonzero(posterior <= 0.5)
    np.testing.assert_array_equal(warmup_pairs("judgement", dataset), matched)
    suspicious = replace(dataset, posterior=posterior + 0.3)
    with pytest.raises(DataError, match=r"200 .*0\.600"):
        warmup_pairs("judgement", suspicious)


def test_streams_hold_every_pair_once_and_follow_the_losses():
    rng = np.random.default_rng(0)
    truth = rng.random(1000) < 0.6
    losses = np.where(truth, rng.beta(2, 12, 1000), rng.beta(9, 4, 1000)) * 3 + 1
    plan = split_pairs(losses, truth)
    together = np.sort(np.concatenate(list(plan.streams.values())))
    np.testing.assert_array_equal(together, np.arange(1000))
    assert list(plan.streams) == ["matched", "mismatched"]
    assert plan.report["matched"] == len(plan.streams["matched"])
    assert losses[plan.streams["matched"]].max() <= losses[plan.streams["mismatched"]].min()
    assert plan.report["split_auroc"] > 0.99 and plan.report["split_accuracy"] > 0.97


def test_quality_is_not_reported_if_the_truth_is_unknown():
    losses = np.random.default_rng(1).beta(2, 5, 100)
    plan = split_pairs(losses, np.ones(100, bool))
    assert set(plan.report) == {"matched", "mismatched", "split_separation"}


def draw_losses(*parts: tuple[float, float, int]) -> np.ndarray:
    """Losses from beta distributions, each given by its two shapes and the number of losses."""
    rng = np.random.default_rng(0)
    return np.concatenate([rng.beta(a, b, count) for a, b, count in parts])


@pytest.mark.parametrize(
    ("losses", "names"),
    [
        (draw_losses((2, 12, 600), (9, 4, 400)), []),
        (draw_losses((2, 12, 950), (9, 4, 50)), []),
        (np.full(50, 0.3), ["equal_losses"]),
        (np.zeros(1), ["equal_losses"]),
        (np.r_[np.zeros(99), 1.0], ["one_sided_split"]),
        (np.r_[np.ones(99), 0.0], ["one_sided_split"]),
        (draw_losses((5, 5, 1000)), ["overlapping_mixture"]),
        (draw_losses((20, 80, 3000)), ["overlapping_mixture", "mixture_direction"]),
        (np.array([0.1, 0.9]), []),
    ],
    ids=["easy", "few", "equal", "one", "outlier", "all-high", "one-hump", "reversed", "two"],
)
def test_warnings_of_doubtful_splits(losses, names):
    plan = split_pairs(losses, np.ones(len(losses), bool))
    assert list(plan.warnings) == names
    together = np.concatenate(list(plan.streams.values()))
    np.testing.assert_array_equal(np.sort(together), np.arange(len(losses)))


def test_a_stream_without_pairs_is_left_out():
    assert list(split_pairs(np.full(50, 0.3), np.ones(50, bool)).streams) == ["matched"]
