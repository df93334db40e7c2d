"""Linear models: no model has seen the pairs that it judges, and weights count as copies."""

import numpy as np
import pytest

from l2rm_jax.judging import linear
from l2rm_jax.judging.fold_samples import first_pairs
from l2rm_jax.judging.linear import fit_weighted, fold_models
from l2rm_jax.judging.sibling_swaps import matched_posterior, swap_rates
from l2rm_jax.linear.cca import Ridge
from tests.judging.parts import divided
from tests.judging.synthetic import make_pairs

IMAGES, EACH, FOLDS = 240, 3, 3


@pytest.fixture(scope="module")
def pairs():
    return make_pairs(IMAGES, EACH, 0.4)


def models_of(images, captions, stored):
    folds, _, drawn = divided(images, captions, stored, FOLDS)
    return fold_models(images, captions, folds, drawn), folds


@pytest.mark.parametrize("sampled", [False, True], ids=["all pairs", "samples"])
def test_a_fold_has_no_part_in_the_model_that_judges_it(pairs, sampled, monkeypatch):
    images, captions, stored, _ = pairs
    if sampled:
        monkeypatch.setattr(linear, "_FITTED", 300)
        monkeypatch.setattr(linear, "_FITTED_A_DIMENSION", 1)
        monkeypatch.setattr(linear, "_OF_RIDGE", 50)
    before, folds = models_of(images, captions, stored)
    inside = np.flatnonzero(folds.of_pair == 1)
    changed = stored.copy()
    changed[inside] = np.random.default_rng(2).permutation(stored[inside])
    after, _ = models_of(images, captions, changed)
    for fold in range(FOLDS):
        difference = np.abs(before[fold].image_map - after[fold].image_map).max()
        # In a sample, the other pairs of the fold have weight 0 in the sums.
        assert (difference < 1e-5) == (fold == 1)


def test_first_pairs_of_a_fold_keep_its_samples(pairs):
    images, captions, stored, _ = pairs
    here = divided(images, captions, stored, FOLDS)[2][0]
    assert first_pairs(here, len(here.pairs)) is here
    few = here._replace(references=here.references[:20], captions=here.captions[:30])
    few = few._replace(replaced=few.replaced[:20], wrong=here.wrong % 20)
    some = first_pairs(few, 25)
    assert 25 <= len(some.pairs) <= 25 + 30 + 20
    assert set(few.pairs[:25]) <= set(some.pairs)
    np.testing.assert_array_equal(some.images[some.position], stored[some.pairs])
    np.testing.assert_array_equal(some.images[some.references], few.images[few.references])
    np.testing.assert_array_equal(some.pairs[some.captions], few.pairs[few.captions])
    np.testing.assert_array_equal(some.pairs[some.replaced], few.pairs[few.replaced])
    places = {image: place for place, image in enumerate(few.images)}
    np.testing.assert_array_equal(some.wrong, few.wrong[[places[i] for i in some.images]])


def test_weights_of_pairs_equal_copies(pairs):
    images, captions, stored, _ = pairs
    copies = np.random.default_rng(3).integers(0, 3, len(stored))
    weighted = fit_weighted(images, captions, stored, copies.astype(np.float64), Ridge(1, 1))
    rows = np.repeat(np.arange(len(stored)), copies)
    copied = fit_weighted(images, captions[rows], stored[rows], np.ones(len(rows)), Ridge(1, 1))
    np.testing.assert_allclose(weighted.correlations, copied.correlations, atol=1e-5)
    rows = np.arange(20)
    found, expected = (
        model.encode_images(images[rows]) @ model.encode_captions(captions[rows]).T
        for model in (weighted, copied)
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.7])
@pytest.mark.parametrize("together", [False, True])
def test_pairs_are_judged_with_their_siblings_where_they_were_swapped_together(rate, together):
    """Scores of pairs with known state; a set of five is more informative than one caption."""
    rng = np.random.default_rng(0)
    image = np.repeat(np.arange(400), 5)
    draws = rng.random(len(image)) < rate
    wrong = draws[image * 5] if together else draws
    information = rng.normal(np.where(wrong, -1, 2), 1.2).astype(np.float32)
    null = rng.normal(-1, 1.2, (len(image), 10)).astype(np.float32)
    matched = matched_posterior(information, null, image)
    right = np.mean((matched > 0.5) == ~wrong)
    assert right > (0.98 if together else 0.85)
    assert abs(matched.mean() - np.mean(~wrong)) < 0.05


def test_swap_rates_of_known_ratios():
    rng = np.random.default_rng(1)
    position = np.repeat(np.arange(2000), 5)
    swapped = rng.random(2000) < 0.2
    wrong = swapped[position] | (rng.random(len(position)) < 0.1)
    ratio = rng.normal(np.where(wrong, -2, 2), 2)  # its log ratio is itself
    together, alone = swap_rates(ratio, position)
    assert together == pytest.approx(0.2, abs=0.03) and alone == pytest.approx(0.1, abs=0.03)
