"""Information of pairs and of known mismatches against loops."""

import numpy as np
import pytest

from l2rm_jax.errors import DataError
from l2rm_jax.judging import folds as judging_folds
from l2rm_jax.judging.detectors import best_temperature
from l2rm_jax.judging.folds import draw_negatives, fold_pairs
from l2rm_jax.judging.log_odds import Model, compare_fold, product_similarity
from tests.judging.parts import divided
from tests.judging.synthetic import make_pairs

TEMPERATURE = 0.3


@pytest.fixture(scope="module")
def compared():
    images, captions, stored, _ = make_pairs(90, 2, 0.2)
    _, _, drawn = divided(images, captions, stored, folds=3)
    similarities = np.random.default_rng(0).uniform(-1, 1, (90, 180)).astype(np.float32)

    def similarity(i, c):
        return similarities[np.ix_(i, c)]

    return drawn[1], compare_fold(drawn[1], Model(similarity, TEMPERATURE)), similarities


def test_stored_pairs_and_known_mismatches_equal_a_loop(compared):
    here, found, similarities = compared
    s = similarities.astype(np.float64) / TEMPERATURE
    references, some = here.images[here.references], here.pairs[here.captions]
    for n in (0, 7, 20):
        caption, image = here.pairs[n], here.images[here.position[n]]
        of_images = s[image, caption] - np.log(np.mean(np.exp(s[references, caption])))
        of_captions = s[image, caption] - np.log(np.mean(np.exp(s[image, some])))
        assert found.stored.of_images[n] == pytest.approx(of_images, abs=1e-4)
        assert found.stored.of_captions[n] == pytest.approx(of_captions, abs=1e-4)
        assert found.stored.mean[n] == pytest.approx((of_images + of_captions) / 2, abs=1e-4)
        assert found.stored.similarity[n] == pytest.approx(similarities[image, caption], abs=1e-6)
        spread = np.log(np.mean(np.exp(s[references, caption]))) - s[references, caption].mean()
        assert found.contrast[n] == pytest.approx(spread, abs=1e-4)
        for k, place in enumerate(here.wrong[here.position[n]]):
            wrong = references[place]
            others = references[references != image]
            value = s[wrong, caption] - np.log(np.mean(np.exp(s[others, caption])))
            assert found.wrong.of_images[n, k] == pytest.approx(value, abs=1e-4)
            left = some[some != here.pairs[here.replaced[place]]]
            value = s[wrong, caption] - np.log(np.mean(np.exp(s[wrong, left])))
            assert found.wrong.of_captions[n, k] == pytest.approx(value, abs=1e-4)


def test_samples_approximate_all(compared, monkeypatch):
    images, captions, stored, _ = make_pairs(90, 2, 0.2)
    monkeypatch.setattr(judging_folds, "REFERENCES", 20)
    _, _, drawn = divided(images, captions, stored, folds=3)
    _, found, similarities = compared

    def similarity(i, c):
        return similarities[np.ix_(i, c)]

    few = compare_fold(drawn[1], Model(similarity, TEMPERATURE))
    assert len(drawn[1].references) == len(drawn[1].captions) == 20
    assert 0 < abs(few.stored.mean - found.stored.mean).max() < 1.5


def test_what_is_drawn_depends_on_contents_alone():
    images, captions, stored, _ = make_pairs(60, 3, 0.2)
    of, _, drawn = divided(images, captions, stored, folds=3)
    rng = np.random.default_rng(1)
    to = rng.permutation(len(captions))
    keys = divided(images, captions[to], stored[to], folds=3)[1]
    again = fold_pairs(of._replace(image_of=stored[to]), keys, 0)
    for fold, here in drawn.items():
        np.testing.assert_array_equal(to[again[fold].pairs], here.pairs)
        for name in ("images", "position", "references", "captions", "replaced", "wrong"):
            np.testing.assert_array_equal(getattr(again[fold], name), getattr(here, name))
        groups = of.image_group[here.images]
        assert (groups[here.references][here.wrong] != groups[:, None]).all()
        assert (here.images[here.position] == stored[here.pairs]).all()
        assert (np.diff(here.position) >= 0).all()


def test_one_group_has_no_negatives():
    groups = np.zeros(9, int)
    with pytest.raises(DataError, match="group"):
        draw_negatives(groups, groups[:4], 2, np.random.default_rng(0))


@pytest.mark.parametrize("scale", [0.01, 1.0, 40.0])
def test_the_best_temperature_gives_matched_pairs_the_most_information(scale):
    """Comparison with a grid, for images with unequal numbers of captions, at any scale."""
    rng = np.random.default_rng(1)
    own = np.sort(rng.integers(0, 40, 130))
    similarities = rng.standard_normal((40, 130))
    similarities[own, np.arange(130)] += 1.5
    similarities *= scale

    def information(temperature):
        s = similarities / temperature
        of_captions = np.log(np.mean(np.exp(s), axis=0))
        of_images = np.log(np.mean(np.exp(s), axis=1))[own]
        return np.mean(s[own, np.arange(130)] - (of_captions + of_images) / 2)

    found = best_temperature(similarities.astype(np.float32), own)
    grid = similarities.std() / np.geomspace(0.1, 30, 400)
    best = max(grid, key=information)
    assert found == pytest.approx(best, rel=0.1) and information(found) > information(best) - 1e-3


def test_the_best_temperature_has_bounds():
    """Perfectly ranked pairs, and pairs with equal similarities."""
    right, own = np.eye(30, dtype=np.float32), np.arange(30)
    assert right.std() / 30.1 < best_temperature(right, own) < right.std()
    assert best_temperature(-right, own) == pytest.approx(right.std() * 10, rel=0.1)
    assert 0 < best_temperature(0 * right, own) < np.inf


def test_products_are_found_by_row():
    rng = np.random.default_rng(2)
    images, captions = np.array([2, 5, 9]), np.array([1, 4, 6, 7])
    of_images, of_captions = rng.random((3, 8), np.float32), rng.random((4, 8), np.float32)
    similarity = product_similarity(images, of_images, captions, of_captions)
    expected = of_images[[2, 0]] @ of_captions[[3, 3, 1]].T
    found = similarity(np.array([9, 2]), np.array([7, 7, 4]))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
