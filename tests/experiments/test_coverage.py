"""The sets of pairs with a shared Gaussian space: their truth, and a row of the table."""

import numpy as np
import pytest

from experiments.judging import coverage
from l2rm_jax.linear.rows import unit_rows


def test_sets_are_as_they_are_asked_for():
    pairs = coverage.make_pairs(np.random.default_rng(0), 2000, 8, 0.1, 0.25)
    assert pairs.images.shape == (2000, 64) and pairs.captions.shape == (2000, 48)
    assert np.mean(pairs.image_of != np.arange(2000)) == 0.25
    assert sorted(pairs.image_of) == list(range(2000))
    with_noise = coverage.make_pairs(np.random.default_rng(0), 2000, 8, 3.0, 0.0)
    for found, own in ((pairs, 0.1), (with_noise, 3.0)):
        spectrum = np.linalg.svd(found.images, compute_uv=False)[8:] / np.sqrt(2000)
        assert np.median(spectrum) == pytest.approx(own, rel=0.1)  # beyond the shared directions


@pytest.mark.parametrize("kind", ["one", "repeated", "separated"])
def test_small_sets_are_of_their_kind(kind):
    pairs, wrong = coverage.make_kind(kind, 300, 0.2, None)
    assert wrong.sum() == 60 and (pairs.image_of == np.arange(300)).all()
    assert len(np.unique(pairs.images, axis=0)) == (60 if kind == "repeated" else 300)
    if kind == "separated":
        cosines = (unit_rows(pairs.images) * unit_rows(pairs.captions)).sum(axis=1)
        assert ((cosines < 0.7) == wrong).all()


@pytest.mark.slow
def test_a_set_has_a_row(monkeypatch):
    monkeypatch.setattr(coverage, "PAIRS", (300,))
    monkeypatch.setattr(coverage, "NOISE", (0.5,))
    row = coverage.gaussian(1)
    assert float(row["rate_low"]) <= float(row["rate"]) <= float(row["rate_high"])
    assert row["held"] == (float(row["rate_low"]) <= float(row["true"]) <= float(row["rate_high"]))
