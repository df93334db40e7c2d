"""Pictures of scenes: the things in them, and the PNG files that hold them."""

import struct
import zlib

import numpy as np
import pytest

from l2rm_jax.data import scenes
from l2rm_jax.data.scenes.drawing import RGB
from l2rm_jax.data.scenes.world import SHAPES


def read_png(path):
    """Read an 8-bit RGB file without filters; check every checksum."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(body)
        chunks[body[:4]] = body[4:]
        at += 12 + length
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, 3)


def test_png_holds_the_drawing(tmp_path):
    scene = scenes.generate(1, 3, "train").scenes[0]
    scenes.write_png(scene, tmp_path / "scene.png")
    image = scenes.draw(scene)
    assert image.dtype == np.uint8 and image.shape == (192, 192, 3)
    np.testing.assert_array_equal(read_png(tmp_path / "scene.png"), image)
    matplotlib_image = pytest.importorskip("matplotlib.image")
    back = matplotlib_image.imread(tmp_path / "scene.png")
    np.testing.assert_array_equal((back[..., :3] * 255).round().astype(np.uint8), image)


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
