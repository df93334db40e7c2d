"""Pictures as pixels, in a file or in memory."""

import numpy as np
import pytest

from l2rm_jax.data.pixels import Pixels
from l2rm_jax.errors import DataError


def random_pixels(images=5, size=4):
    return np.random.default_rng(0).integers(0, 256, (images, size, size, 3), np.uint8)


def test_rows_are_bytes_of_the_mapped_file(tmp_path):
    array = random_pixels()
    np.save(tmp_path / "dev_pixels.npy", array)
    pixels = Pixels.read(tmp_path / "dev_pixels.npy")
    assert (
        isinstance(pixels.array.base, np.memmap)
        and pixels.shape == (5, 4, 4, 3)
        and len(pixels) == 5
    )
    assert pixels.rows([1]).dtype == np.uint8
    np.testing.assert_array_equal(pixels.rows([3, 0, 3]), array[[3, 0, 3]])
    np.testing.assert_array_equal(pixels.region_counts([3, 0]), [1, 1])
    taken = pixels.take(np.array([4, 2])).take(np.array([1, 0]))
    np.testing.assert_array_equal(taken.rows([0, 1]), array[[2, 4]])
    np.testing.assert_array_equal(pixels.head(2).rows([0, 1]), array[:2])
    np.testing.assert_array_equal(np.concatenate([*pixels.blocks()]), np.arange(5))
    for wrong in (lambda: pixels.rows([5]), lambda: pixels.rows([-1])):
        with pytest.raises(DataError, match=r"index -?\d"):
            wrong()
    with pytest.raises(DataError, match=r"5 images.* 6"):
        pixels.head(6)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 4, 4, 3), np.float32),
        np.zeros((2, 4, 5, 3), np.uint8),
        np.zeros((2, 4, 4), np.uint8),
        np.zeros((2, 3, 4, 4), np.uint8),
        np.zeros((0, 4, 4, 3), np.uint8),
    ],
)
def test_other_arrays_are_refused(array):
    with pytest.raises(DataError, match=r"x: found .*"):
        Pixels.from_array(array, "x")
