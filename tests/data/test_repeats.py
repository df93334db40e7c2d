import numpy as np
import pytest

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.repeats import undo_repeats
from l2rm_jax.errors import DataError

RNG = np.random.default_rng(0)


def features(images: int) -> np.ndarray:
    return RNG.normal(size=(images, 4, 6)).astype(np.float32)


@pytest.mark.parametrize("images", [1, 3, 200])
def test_repeats_are_undone(images):
    stored = features(images)
    stored[0, 0, 0] = np.nan  # identical bytes, though not equal
    seen = undo_repeats(RegionFeatures.from_array(np.repeat(stored, 5, axis=0), "mine"))
    assert seen.shape == (images, 4, 6)
    last = [images - 1]
    if images > 1:
        np.testing.assert_array_equal(seen.rows(last), stored[last])
        np.testing.assert_array_equal(seen.head(2).rows([1]), stored[[1]])
    with pytest.raises(DataError, match="row 0: found nan"):
        seen.rows([0])


@pytest.mark.parametrize("rows", [500, 502])
def test_rows_that_are_no_repeats_are_left_alone(rows):
    images = RegionFeatures.from_array(features(rows), "mine")
    assert undo_repeats(images) is images


@pytest.mark.parametrize("row", [0, 33, 104, 999])
def test_partly_repeated_rows_are_refused(row):
    stored = np.repeat(features(200), 5, axis=0)
    stored[row, 0, 2] += 1
    first = row // 5 * 5
    with pytest.raises(DataError, match=f"mine: rows {first} to {first + 4}: found different"):
        undo_repeats(RegionFeatures.from_array(stored, "mine"))


# Images with fewer regions


def test_repeats_are_undone_with_their_counts():
    counts = RNG.integers(1, 5, 200)
    stored = np.repeat(features(200), 5, axis=0)
    rows = np.repeat(counts, 5)
    padding = np.arange(4) >= rows[:, None]
    stored[padding] = RNG.normal(size=(padding.sum(), 6))  # unequal within a repeated image
    seen = undo_repeats(RegionFeatures.from_array(stored, "mine", rows))
    assert len(seen) == 200
    np.testing.assert_array_equal(seen.region_counts(np.arange(200)), counts)
    np.testing.assert_array_equal(seen.head(9).region_counts([8]), counts[[8]])
    assert seen.rows([3])[0].any(axis=1).sum() == counts[3]


@pytest.mark.parametrize("row", [0, 33, 999])
def test_repeats_of_unequal_counts_are_refused(row):
    counts = np.full(1000, 3)
    counts[row] = 2
    first = row // 5 * 5
    message = rf"mine: rows {first} to {first + 4}: found \[.*2.*\] regions for one repeated image"
    with pytest.raises(DataError, match=message):
        undo_repeats(RegionFeatures.from_array(np.repeat(features(200), 5, 0), "mine", counts))
