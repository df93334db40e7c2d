"""Folds: stable, balanced, by group."""

import numpy as np
import pytest

from l2rm_jax.data.content_hashes import hash_keys
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.judging.folds import Folds, assign_folds, check_folds


@pytest.mark.parametrize("keys", [np.arange(3000), [f"photo {i}.jpg" for i in range(3000)]])
def test_added_images_move_no_image(keys):
    few, many = assign_folds(keys[:1000], 5, seed=3), assign_folds(keys, 5, seed=3)
    np.testing.assert_array_equal(few, many[:1000])
    counts = np.bincount(many)
    assert len(counts) == 5 and abs(counts - 600).max() < 5 * np.sqrt(480)
    assert 0.1 < (assign_folds(keys, 5, seed=4) == many).mean() < 0.3


def test_order_does_not_matter_and_groups_stay_together():
    groups = np.random.default_rng(0).integers(0, 50, 400)
    folds = assign_folds(groups, 3, seed=0)
    np.testing.assert_array_equal(folds[::-1], assign_folds(groups[::-1], 3, seed=0))
    assert all(len(np.unique(folds[groups == group])) == 1 for group in groups)


def test_hashes_are_those_of_every_version():
    """Folds of a kept run must not change with an update."""
    assert hash_keys(np.array([0, 1]), 0).tolist() == [14762744719350714032, 8460570970101496407]
    assert hash_keys(["a.jpg"], 0).tolist() == [14471775568803960538]


def test_too_few_folds_or_images():
    with pytest.raises(ConfigError, match="found 2"):
        assign_folds(np.arange(10), 2, seed=0)
    folds, stored = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 2, 3, 4, 4])
    with pytest.raises(DataError, match=r"fold 2 .*1 of the 5"):
        check_folds(Folds(stored, folds, np.arange(6)))
    with pytest.raises(DataError, match=r"fold 0 .* 1 of"):
        check_folds(Folds(np.arange(6), folds, np.array([7, 7, 2, 3, 4, 5])))
    check_folds(Folds(np.arange(6), folds, np.arange(6)))
