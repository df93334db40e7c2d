"""Level, units, rate and its interval, on evidence made by hand."""

import numpy as np
import pytest
from l2rm_jax.crossfit.judge import bootstrap_rates, judge
from l2rm_jax.crossfit.posterior import calibrate_counts

from l2rm_jax.errors import ConfigError
from l2rm_jax.judging.histogram import Histogram
from l2rm_jax.judging.information import Evidence
from l2rm_jax.judging.level import find_level, swap_rates, units_at


def evidence_of(mismatched, seed=0):
    """Scores of pairs with known state; log ratio = 2 (s + 0.5) - 2.25, twice the information."""
    rng = np.random.default_rng(seed)
    n = len(mismatched)
    scores = rng.normal(np.where(mismatched, -1, 2), 1.2)
    return Evidence(scores.astype(np.float32), rng.normal(-1, 1.2, (n, 20)).astype(np.float32))


def swapped(level, rate, images=400, captions=5, seed=0):
    """The image of each pair, and which pairs are mismatched at that level."""
    stored = np.repeat(np.arange(images), captions)
    draws = np.random.default_rng(seed).random(len(stored)) < rate
    return stored, draws if level == "pair" else draws[stored * captions]


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("level", ["pair", "image"])
def test_level_is_found_and_judged(level, rate):
    stored, mismatched = swapped(level, rate)
    shuffle = np.random.default_rng(9).permutation(len(stored))
    judged = judge(evidence_of(mismatched[shuffle]), stored[shuffle])
    assert judged.level == level
    assert judged.rate_low <= judged.rate <= judged.rate_high
    assert judged.rate_low - 0.02 < mismatched.mean() < judged.rate_high + 0.02
    assert ((judged.posterior > 0.5) != mismatched[shuffle]).mean() > 0.85
    assert abs(judged.separation - (0.963 if level == "pair" else 0.9999)) < 0.02
    if level == "image":
        for image in range(5):
            assert np.ptp(judged.posterior[stored[shuffle] == image]) == 0


def test_one_caption_an_image_is_judged_pair_by_pair():
    stored, mismatched = swapped("pair", 0.3, images=500, captions=1)
    assert find_level(evidence_of(mismatched), stored) == "pair"


@pytest.mark.parametrize("images, captions", [(0.1, 0.1), (0.3, 0.0), (0.0, 0.2)])
def test_shares_swapped_together_and_alone(images, captions):
    stored, together = swapped("image", images, seed=2)
    _, alone = swapped("pair", captions, seed=3)
    rng = np.random.default_rng(4)
    scores = rng.normal(np.where(together | alone, -1, 2), 1.2)
    log_ratio = ((scores + 1) ** 2 - (scores - 2) ** 2) / 2 / 1.2**2
    expected = together.mean(), (alone & ~together).sum() / (~together).sum()
    np.testing.assert_allclose(swap_rates(log_ratio, stored), expected, atol=0.02)
    evidence = Evidence(scores, rng.normal(-1, 1.2, (len(stored), 20)))
    assert find_level(evidence, stored) == ("pair" if captions else "image")


def test_units_of_images_equal_a_loop():
    rng = np.random.default_rng(1)
    stored = rng.choice([2, 3, 7, 11], 30)  # images have different numbers of captions
    evidence = Evidence(rng.random(30), rng.random((30, 20)))
    units = units_at(evidence, stored, "image")
    assert units.image.tolist() == [2, 3, 7, 11]
    for unit, image in enumerate(units.image):
        own = stored == image
        np.testing.assert_allclose(units.information[unit], evidence.information[own].mean())
        np.testing.assert_allclose(units.negatives[unit], evidence.negatives[own].mean(axis=0))
        assert (units.of_pair[own] == unit).all()
    with pytest.raises(ConfigError, match="found the level 'word', expected pair or image"):
        units_at(evidence, stored, "word")


def test_bootstrap_equals_one_that_copies_images():
    stored, mismatched = swapped("pair", 0.4, images=60, captions=3)
    units = units_at(evidence_of(mismatched), stored, "pair")
    found = bootstrap_rates(units, draws=4, seed=3)
    histogram = Histogram.over(units.information, units.negatives)
    below, rng = histogram.count(units.negatives.ravel()), np.random.default_rng(3)
    for rate in found:
        drawn = rng.integers(0, 60, 60)
        copies = np.concatenate([units.information[stored == image] for image in drawn])
        expected = calibrate_counts(histogram.centres, histogram.count(copies)[None], below)
        assert rate == pytest.approx(expected.rate[0], abs=1e-3)


def test_interval_of_images_is_wider_and_covers_the_truth():
    widths = {}
    for level in ("pair", "image"):
        stored, mismatched = swapped(level, 0.5, images=300)
        judged = judge(evidence_of(mismatched), stored, level="pair")
        widths[level] = judged.rate_high - judged.rate_low
    assert widths["image"] > 1.25 * widths["pair"] > 0.03


def test_level_can_be_set():
    stored, mismatched = swapped("image", 0.4)
    evidence = evidence_of(mismatched)
    assert judge(evidence, stored, "pair").level == "pair"
    with pytest.raises(ConfigError, match="found the level"):
        judge(evidence, stored, "caption")
