"""The linear detector: it finds swapped captions, and no model sees what it judges."""

import numpy as np
import pytest
from l2rm_jax.crossfit import linear

from l2rm_jax.errors import DataError
from l2rm_jax.judging.folds import assign_folds
from l2rm_jax.judging.linear import cca_similarity, fit_weighted, judge_pairs
from l2rm_jax.linear.cca import Ridge

IMAGES, EACH, FOLDS = 240, 3, 3


@pytest.fixture(scope="module")
def data():
    """Vectors of images, and of captions that share a part with their own image."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((IMAGES, 6))
    own = np.repeat(np.arange(IMAGES), EACH)
    images = np.concatenate([hidden, rng.standard_normal((IMAGES, 4))], axis=1)
    captions = np.concatenate([hidden[own], rng.standard_normal((len(own), 3))], axis=1)
    captions += 0.3 * rng.standard_normal(captions.shape)
    folds = assign_folds(np.arange(IMAGES), FOLDS, seed=0)
    return images.astype(np.float32), captions.astype(np.float32), own, folds


def swap(own, level, rate, seed=1):
    """The stored images after a permutation of some images, or of some captions' images."""
    rng = np.random.default_rng(seed)
    values = np.arange(IMAGES) if level == "image" else own.copy()
    chosen = rng.permutation(len(values))[: int(rate * len(values))]
    values[chosen] = values[rng.permutation(chosen)]
    return values[own] if level == "image" else values


@pytest.mark.parametrize("level", ["pair", "image"])
def test_swapped_captions_are_found(data, level):
    images, captions, own, folds = data
    stored = swap(own, level, 0.5)
    judged = judge_pairs(images, captions, stored, folds)
    assert judged.level == level
    assert ((judged.posterior > 0.5) == (stored == own)).mean() > 0.93
    assert abs(judged.rate - (stored != own).mean()) < 0.06 and judged.separation > 0.97


def models_of(data, stored, monkeypatch):
    """The model that judges each fold in the end, as bytes."""
    images, captions, _, folds = data
    models = {}

    def spy(model, images, captions, pair_image, pairs):
        models[int(folds[pair_image[pairs[0]]])] = b"".join(part.tobytes() for part in model)
        return cca_similarity(model, images, captions, pair_image, pairs)

    monkeypatch.setattr(linear, "cca_similarity", spy)
    judge_pairs(images, captions, stored, folds)
    monkeypatch.undo()
    return models


@pytest.mark.slow
def test_a_fold_has_no_part_in_the_model_that_judges_it(data, monkeypatch):
    *_, own, folds = data
    stored = swap(own, "pair", 0.5)
    before = models_of(data, stored, monkeypatch)
    inside = np.flatnonzero(folds[stored] == 1)
    stored[inside] = np.random.default_rng(2).permutation(stored[inside])
    after = models_of(data, stored, monkeypatch)
    assert before[1] == after[1]
    assert before[0] != after[0] and before[2] != after[2]


def test_the_same_input_gives_the_same_bits(data):
    images, captions, own, folds = data
    stored = swap(own, "image", 0.3)
    one, two = (judge_pairs(images, captions, stored, folds, seed=4) for _ in range(2))
    np.testing.assert_array_equal(one.posterior, two.posterior)
    assert one[3:] == two[3:]


def test_weights_of_pairs_equal_copies(data):
    images, captions, own, _ = data
    copies = np.random.default_rng(3).integers(0, 3, len(own))
    weighted = fit_weighted(images, captions, own, copies.astype(np.float64), Ridge(1, 1))
    rows = np.repeat(np.arange(len(own)), copies)
    copied = fit_weighted(images, captions[rows], own[rows], np.ones(len(rows)), Ridge(1, 1))
    np.testing.assert_allclose(weighted.correlations, copied.correlations, atol=1e-5)
    rows = np.arange(20)
    found, expected = (
        model.encode_images(images[rows]) @ model.encode_captions(captions[rows]).T
        for model in (weighted, copied)
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_folds_without_captions_are_refused(data):
    images, captions, own, _ = data
    with pytest.raises(DataError, match="fold 1 has captions of 0 of the 240 images"):
        judge_pairs(images, captions, own, np.where(np.arange(IMAGES) % 2, 0, 2))
