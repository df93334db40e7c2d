"""Pictures of scenes: their content, and their PNG files."""

from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from l2rm_jax.data import scenes
from l2rm_jax.data.scenes.drawing import RGB
from l2rm_jax.data.scenes.world import SHAPES, TEXTURES


def test_png_holds_the_drawing(tmp_path):
    scene = scenes.generate(1, 3, "train").scenes[0]
    scenes.write_png(scene, tmp_path / "scene.png")
    image = scenes.draw(scene)
    assert image.dtype == np.uint8 and image.shape == (192, 192, 3)
    with Image.open(tmp_path / "scene.png") as written:
        np.testing.assert_array_equal(written, image)


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("colour", ["red", "white"])
def test_things_are_drawn_where_and_as_they_are(shape, colour):
    there = scenes.Thing(colour, shape, "large", "plain", 0.2, 0.7, 0.13)
    image = scenes.draw(scenes.Scene("night", (there,))).astype(int)
    same = (np.abs(image - RGB[colour]) < 8).all(-1)
    rows, columns = np.nonzero(same)
    assert same.sum() > 400
    assert abs(columns.mean() / 192 - 0.2) < 0.07  # a moon is lopsided
    assert abs(rows.mean() / 192 - 0.7) < 0.05


@pytest.mark.slow
def test_shapes_and_textures_look_different():
    drawn = [
        scenes.draw(
            scenes.Scene("snow", (scenes.Thing("red", shape, "large", texture, 0.5, 0.5, 0.13),))
        )
        for shape in SHAPES
        for texture in TEXTURES
    ]
    colours = np.stack(drawn) @ np.array([1 << 16, 1 << 8, 1])  # one number a pixel
    for one, other in combinations(colours, 2):
        assert np.count_nonzero(one != other) > 100
