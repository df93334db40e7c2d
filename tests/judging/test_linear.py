"""Linear models: no model has seen the pairs that it judges, and weights count as copies."""

import numpy as np
import pytest

from l2rm_jax.judging import linear
from l2rm_jax.judging.folds import first_pairs
from l2rm_jax.judging.linear import fold_models
from l2rm_jax.judging.sibling_swaps import log_ratio, matched_posterior, swap_rates
from l2rm_jax.linear.cca import Ridge
from tests.judging.parts import divided, fit_weighted
from tests.judging.synthetic import make_pairs

IMAGES, EACH, FOLDS = 240, 3, 3


@pytest.fixture(scope="module")
def pairs():
    return make_pairs(IMAGES, EACH, 0.4)


def models_of(images, captions, stored):
    folds, keys, drawn = divided(images, captions, stored, FOLDS)
    return fold_models(images, captions, folds, drawn, keys.image), folds


@pytest.mark.parametrize("sampled", [False, True], ids=["all pairs", "samples"])
def test_a_fold_has_no_part_in_the_model_that_judges_it(pairs, sampled, monkeypatch):
    images, captions, stored, _ = pairs
    if sampled:
        monkeypatch.setattr(linear, "_FITTED", 300)
        monkeypatch.setattr(linear, "_FITTED_A_DIMENSION", 1)
        monkeypatch.setattr(linear, "_OF_RIDGE", 50)
        monkeypatch.setattr(linear, "_OF_PLAN", 200)
    before, folds = models_of(images, captions, stored)
    inside = np.flatnonzero(folds.of_pair == 1)
    changed = stored.copy()
    changed[inside] = np.random.default_rng(2).permutation(stored[inside])
    after, _ = models_of(images, captions, changed)
    for fold in range(FOLDS):
        is_same = np.array_equal(before.models[fold].image_map, after.models[fold].image_map)
        assert is_same == (fold == 1)
        assert np.array_equal(before.weights[fold], after.weights[fold]) == (fold == 1)
    assert not before.weights[folds.of_pair, np.arange(len(stored))].any()


def test_captions_of_a_fold_that_move_together_do_not_change_its_model(pairs):
    """Whether sets moved together is decided in each fit, without the fold that it judges."""
    images, captions, stored, _ = pairs
    before, folds = models_of(images, captions, stored)
    inside = np.unique(stored[folds.of_pair == 1])
    to = np.arange(len(images))
    to[inside] = np.roll(inside, 1)
    after, _ = models_of(images, captions, to[stored])
    np.testing.assert_array_equal(before.models[1].caption_map, after.models[1].caption_map)


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


def test_swapped_sets_are_seen_only_where_there_are_some():
    rng = np.random.default_rng(1)
    position = np.repeat(np.arange(400), 5)
    wrong = rng.random(len(position)) < 0.8  # of which sets of five are frequent by chance
    alone = swap_rates(rng.normal(np.where(wrong, -2, 2), 2), position)
    wrong |= (rng.random(400) < 0.1)[position]
    wrong[:1000] &= (rng.random(200) < 0.2)[position[:1000]]
    assert not alone.has_sets
    assert swap_rates(rng.normal(np.where(wrong, -2, 2), 2), position).has_sets


def test_log_ratio_of_normal_densities():
    rng = np.random.default_rng(2)
    rate, wrong = 0.6, rng.normal(-1, 1, 200_000)
    information = np.where(
        rng.random(100_000) < rate, rng.normal(-1, 1, 100_000), rng.normal(1, 1, 100_000)
    )
    found = log_ratio(information, wrong, rate)
    clear = np.abs(information) < 1.5  # where both have enough pairs
    np.testing.assert_allclose(found[clear], 2 * information[clear], atol=0.5)


def test_swap_rates_of_known_ratios():
    rng = np.random.default_rng(1)
    position = np.repeat(np.arange(2000), 5)
    swapped = rng.random(2000) < 0.2
    wrong = swapped[position] | (rng.random(len(position)) < 0.1)
    ratio = rng.normal(np.where(wrong, -2, 2), 2)  # its log ratio is itself
    found = swap_rates(ratio, position)
    assert found.together == pytest.approx(0.2, abs=0.03)
    assert found.alone == pytest.approx(0.1, abs=0.03)
    assert found.is_apart(0.2) and not found.is_apart(0.4)
