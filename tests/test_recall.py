"""Recall against a full sort with ties."""

import numpy as np
import pytest

from l2rm_jax import recall


def full_sort_rank(row: np.ndarray, targets: list[int]) -> int:
    order = np.argsort(row, kind="stable")[::-1].tolist()
    return min(order.index(target) for target in targets)


@pytest.mark.parametrize("captions_per_image", [1, 3])
@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_ties_follow_a_reversed_stable_sort(captions_per_image, levels):
    rng = np.random.default_rng(levels)
    images = 23
    sims = rng.integers(0, levels, (images, images * captions_per_image)) / levels
    own = np.arange(images * captions_per_image).reshape(images, captions_per_image)
    expected = [full_sort_rank(sims[i], own[i].tolist()) for i in range(images)]
    np.testing.assert_array_equal(recall.text_ranks(sims, captions_per_image), expected)
    columns = range(sims.shape[1])
    expected = [full_sort_rank(sims[:, k], [k // captions_per_image]) for k in columns]
    np.testing.assert_array_equal(recall.image_ranks(sims, captions_per_image), expected)


def test_folds_are_consecutive_and_averaged():
    sims = np.random.default_rng(0).random((6, 12))
    first = recall.recalls(sims[:3, :6], 2)
    second = recall.recalls(sims[3:, 6:], 2)
    folds = recall.fold_recalls(sims, 2, folds=2)
    assert folds["rsum"] == pytest.approx((first["rsum"] + second["rsum"]) / 2)
    assert folds["rsum"] != pytest.approx(recall.recalls(sims, 2)["rsum"])


@pytest.mark.parametrize(
    ("shape", "per_image", "message"),
    [((4, 10), 5, "expected 5 captions"), ((4, 4), 2, "expected 2 captions")],
)
def test_wrong_shape_is_refused(shape, per_image, message):
    with pytest.raises(ValueError, match=message):
        recall.recalls(np.zeros(shape), per_image)


def test_nan_is_refused():
    sims = np.zeros((3, 3))
    sims[1, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        recall.recalls(sims, 1)


def test_folds_must_divide():
    with pytest.raises(ValueError, match="do not divide"):
        recall.fold_recalls(np.zeros((5, 5)), 1, folds=2)


def test_table_shows_every_row():
    rows = {"a": recall.recalls(np.eye(12), 1)}
    text = recall.table(rows)
    assert "600.0" in text and "R@10" in text
