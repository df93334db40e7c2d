"""P-values, false discovery rates, the mixture of known densities, and the test of drift."""

import numpy as np
import pytest
from scipy.stats import kstest

from l2rm_jax.judging.drift import Drift, Sample, find_drift
from l2rm_jax.judging.reference import Reference, fit_mixture, p_values, q_values
from l2rm_jax.linear.cca import Cca
from l2rm_jax.linear.rows import unit_rows

MEANS = 5.0, -1.0, 1.5, 3.0, 4.0  # of matched pairs, then of mismatches, the nearest last


def test_p_values_are_weighted_shares_with_ties_against_the_pair():
    rng = np.random.default_rng(0)
    new, reference, weight = rng.integers(0, 9, 40), rng.integers(0, 9, 70), rng.random(70)
    naive = [(1 + weight[reference <= s].sum()) / (1 + weight.sum()) for s in new]
    np.testing.assert_allclose(p_values(new * 1.0, reference * 1.0, weight), naive)


def test_p_values_of_matched_pairs_are_uniform_and_hidden_mismatches_raise_them():
    rng = np.random.default_rng(1)
    new, reference = rng.normal(size=3000), rng.normal(size=5000)
    p = p_values(new, reference, np.ones(5000))
    assert kstest(p, "uniform").pvalue > 0.01
    reference[:1000] -= 3
    assert (p_values(new, reference, np.ones(5000)) >= p).all()
    known = np.where(np.arange(5000) < 1000, 0.0, 1.0)
    assert kstest(p_values(new, reference, known), "uniform").pvalue > 0.01


def test_q_values_are_those_of_benjamini_and_hochberg():
    p = np.random.default_rng(2).random(50) ** 2
    naive = [min(x * 50 / np.count_nonzero(p <= x) for x in p[p >= own]) for own in p]
    np.testing.assert_allclose(q_values(p), np.minimum(naive, 1))


def known(images: int, rng) -> Reference:
    image = np.repeat(np.arange(images), 3)
    draws = [rng.normal(mean, 1, len(image)).astype(np.float32) for mean in MEANS]
    return Reference(draws[0], np.ones(len(image), np.float32), image, *draws[1:])


def test_each_image_weighs_the_same():
    image = np.array([0, 0, 0, 1, 1, 3, 3, 3, 3])
    reference = known(3, np.random.default_rng(6))._replace(image=image)
    np.testing.assert_allclose(np.bincount(image, reference.weights())[[0, 1, 3]], 3)


@pytest.mark.parametrize("shares", [(1, 0, 0, 0), (0.8, 0.1, 0.05, 0.05), (0.5, 0, 0, 0.5)])
def test_the_mixture_finds_the_shares_of_drawn_densities(shares):
    rng = np.random.default_rng(3)
    kind = rng.choice(4, 6000, p=shares)
    information = rng.normal(np.array(MEANS)[kind], 1).astype(np.float32)
    image = np.repeat(np.arange(2000), 3)
    found = fit_mixture(information, image, known(2000, rng), seed=0)
    true = (kind > 0).mean()
    assert found.rate.estimate == pytest.approx(true, abs=0.04)
    assert found.rate.low <= true <= found.rate.high + 0.01 <= found.upper_bound + 0.01
    assert found.posterior.mean() == pytest.approx(found.rate.estimate, abs=1e-3)
    order = np.argsort(information)
    assert (np.diff(found.posterior[order]) <= 1e-9).all()
    if true:
        bins = np.digitize(found.posterior, [0.2, 0.5, 0.8])
        gaps = [
            abs(found.posterior[bins == b].mean() - (kind > 0)[bins == b].mean()) for b in set(bins)
        ]
        assert max(gaps) < 0.15


def vectors(images: int, rng, sign: int = 1) -> Sample:
    shared = rng.normal(size=(images, 8))
    said = shared + 0.5 * rng.normal(size=shared.shape)
    said[:, :3] *= sign
    sides = (x.astype(np.float32) for x in (shared, said))
    return Sample(np.arange(images, dtype=np.uint64), *sides)


def test_drift_is_told_from_best_fits_and_not_from_the_pairs():
    rng, nothing = np.random.default_rng(4), np.zeros(8, np.float32)
    model = Cca(nothing, np.eye(8, dtype=np.float32), nothing, np.eye(8, dtype=np.float32), nothing)
    known = vectors(200, rng), vectors(200, rng)
    reference = tuple(np.stack([unit_rows(x[side]) for x in known]) for side in (1, 2))
    same = vectors(150, rng)

    def drift(sample: Sample) -> Drift:
        return find_drift(sample, [model, model], reference, 0.1)

    found = drift(same)
    assert found.is_told and found.fits > 0.43 and 0.3 < found.images < 0.7
    swapped = same._replace(captions=same.captions[::-1])
    assert drift(swapped).fits == pytest.approx(found.fits)
    many = vectors(1000, rng)
    one_kind = np.argsort(-many.images[:, 0])[:100]  # they resemble each other, as images of dogs
    assert drift(Sample(*(side[one_kind] for side in many))).fits > 0.43
    turned = drift(vectors(150, rng, -1))
    assert not turned.is_told and turned.fits < found.fits
    assert drift(same._replace(captions=same.captions + 1)).captions > 0.7
