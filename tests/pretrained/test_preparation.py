"""The preparation of pictures for a vision transformer, and its settings."""

import numpy as np
import pytest
from PIL import Image

from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.preparation import Preparation, prepare, read_preparation

IDENTITY = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def test_settings_that_a_file_leaves_out_are_those_of_transformers():
    found = read_preparation({}, "clip", 224)
    assert found.short_side == 224 and found.resample == 3 and found.image_size == 224
    assert found.mean[0] == 0.48145466 and found.std[2] == 0.27577711
    found = read_preparation({}, "siglip", 224)
    assert found == Preparation(224, 0, 3, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_older_forms_of_sizes_are_read():
    assert read_preparation({"size": 24, "crop_size": 24}, "clip", 24).short_side == 24
    settings = {"size": {"shortest_edge": 30}, "crop_size": {"height": 24, "width": 24}}
    assert read_preparation(settings, "clip", 24).short_side == 30
    assert read_preparation({"size": 24}, "siglip", 24).short_side == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": {"shortest_edge": 20}, "crop_size": 24}, "expected pictures of 24 x 24 pixels"),
        ({"size": {"shortest_edge": 24}, "do_center_crop": False}, "without do_center_crop"),
        ({"size": {"height": 20, "width": 24}}, "expected pictures of 24 x 24 pixels"),
        ({"size": "24"}, "size: found '24' crop_size 224"),
        ({"size": 24, "crop_size": 20}, "crop_size 20"),
        ({"size": 24, "crop_size": 24, "do_resize": False}, "do_resize: found False"),
        ({"size": 24, "do_normalize": None}, "do_normalize: found None"),
        ({"size": 24, "rescale_factor": 1}, "rescale_factor: found 1"),
        ({"size": 24, "resample": 7}, "resample: found 7"),
        ({"size": 24, "image_mean": [0.5]}, r"image_mean: found \[0.5\]"),
        ({"size": 24, "image_std": [1, 0, 1]}, r"image_std: found \[1.0, 0.0, 1.0\]"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(settings, message):
    with pytest.raises(DataError, match=message):
        read_preparation(settings, "clip", 24)


def test_every_wrong_setting_is_named():
    with pytest.raises(DataError) as found:
        read_preparation({"size": 20, "resample": "x", "image_mean": "y"}, "clip", 24)
    assert len(found.value.args) == 3


@pytest.mark.parametrize("size", [(40, 30), (30, 61), (24, 24), (25, 24), (7, 9), (3, 100)])
def test_pixels_do_not_depend_on_where_a_square_picture_is_cut(size):
    """A picture of vertical stripes: the square is cut from the centre, after resizing."""
    width, height = size
    ramp = np.broadcast_to(np.linspace(0, 255, width)[None, :, None], (height, width, 3))
    picture = Image.fromarray(ramp.astype(np.uint8))
    [square] = prepare([picture], Preparation(24, 24, 2, **IDENTITY))
    [whole] = prepare([picture], Preparation(24, 0, 2, **IDENTITY))
    assert square.shape == whole.shape == (24, 24, 3) and square.dtype == np.uint8
    assert (np.ptp(square, axis=0) <= 1).all()  # stripes stay vertical
    centre = square[12, 11:13].astype(float).mean()
    assert abs(centre - 127.5) < 255 / 24
    assert int(whole[0, -1, 0]) - int(whole[0, 0, 0]) > 190
    if width > 2 * height:  # only a part of the ramp is left
        assert np.ptp(square.astype(int)) < 130
