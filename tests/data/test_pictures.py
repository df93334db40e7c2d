"""Pictures from anywhere: large ones, many frames, and formats that could start a program."""

import resource
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from l2rm_jax.data.pictures import FORMATS, LARGEST_SIDE, UnreadableError, open_picture
from l2rm_jax.pages.thumbnails import make_thumbnail
from tests.importing.made import encoded, picture

LIMIT = 1 << 20  # kB of memory of a process that opens a picture


def test_every_format_is_read():
    Image.init()
    noise = Image.effect_noise((64, 64), 40).convert("RGB")
    for kind in (*FORMATS, "MPO"):
        if kind in Image.SAVE:
            picture, _ = open_picture(encoded(noise, kind))
            assert picture.size == (64, 64) and picture.mode == "RGB"


@pytest.mark.parametrize("kind", ["EPS", "PDF", "TGA", "PCX", "XBM", "SGI"])
def test_other_formats_are_not_opened(kind):
    """Whatever the file is called: an EPS would be given to Ghostscript."""
    content = encoded(Image.new("1" if kind == "XBM" else "RGB", (32, 32)), kind)
    with pytest.raises(UnreadableError, match="not a format of the web's pictures"):
        open_picture(content)
    assert make_thumbnail(content) == "not a picture"


def test_a_layered_picture_is_not_opened():
    header = b"8BPS\0\1" + bytes(6) + b"\0\3" + (8).to_bytes(4) * 2 + b"\0\x08\0\3" + bytes(14)
    with pytest.raises(UnreadableError, match="not a format of the web's pictures"):
        open_picture(header + bytes(3 * 64))


@pytest.mark.parametrize(
    ("mode", "kind", "settings"),
    [
        ("RGBA", "PNG", {}),
        ("RGB", "TIFF", {"compression": "tiff_deflate"}),
        ("L", "JPEG", {"progressive": True}),
    ],
)
@pytest.mark.slow
def test_a_small_file_of_many_pixels_is_refused_in_little_memory(tmp_path, mode, kind, settings):
    file = tmp_path / "bomb"
    file.write_bytes(encoded(Image.new(mode, (13_300, 13_300)), kind, **settings))
    code = f"""
        from l2rm_jax.data.pictures import UnreadableError, open_picture
        from l2rm_jax.pages.thumbnails import make_thumbnail
        content = open({str(file)!r}, "rb").read()
        try:
            open_picture(content)
        except UnreadableError as error:
            print(error)
        if len(content) > 24 * 1024:
            print(make_thumbnail(content))
        status = open("/proc/self/status").read()
        assert int(status.split("VmHWM:")[1].split()[0]) < {LIMIT}, status
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout and all("too large" in line for line in done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGBA", "I;16", "I", "LA", "P"])
def test_the_largest_picture_takes_less_than_a_gigabyte(mode):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = encoded(Image.new(mode, (8192, 8192)), "TIFF" if mode == "I" else "PNG")
    picture, _ = open_picture(content)
    assert max(picture.size) == 2048
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LIMIT


@pytest.mark.parametrize("mode", ["RGBA", "LA", "I;16", "I"])
def test_strips_join_without_a_seam(mode):
    """A picture taller than a strip is converted as if it were whole."""
    values = np.random.default_rng(0).integers(0, 256, (600, 30, 4)).astype(np.uint8)
    if mode == "I;16":
        picture = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
        expected = Image.fromarray(values[..., 0]).convert("RGB")
    elif mode == "I":
        picture = Image.fromarray(values[..., 0].astype(np.int32) * 16)
        expected = Image.fromarray(values[..., 0]).convert("RGB")
    else:
        picture = Image.fromarray(values).convert(mode)
        white = Image.new("RGBA", picture.size, "white")
        expected = Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB")
    kind = "TIFF" if mode == "I" else "PNG"
    found, _ = open_picture(encoded(picture, kind))
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_only_the_first_of_many_frames_is_read():
    frames = [Image.new("L", (32, 32), value) for value in range(200)]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    picture, done = open_picture(content)
    assert done[0] == "first frame" and not np.asarray(picture).any()


FRAMES = {"save_all": True, "append_images": [picture(1), picture(2)], "lossless": True}
TURNED = Image.Exif()
TURNED[0x0112] = 6
CLEAR = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
WHITE = Image.new("RGB", (16, 16), "white")


@pytest.mark.parametrize(
    ("shown", "kind", "settings", "done", "expected"),
    [
        (picture(2), "PNG", {}, [], picture(2)),
        (picture(2).convert("L"), "PNG", {}, [], picture(2).convert("L")),
        (picture(2).convert("P"), "PNG", {}, ["P to RGB"], picture(2).convert("P")),
        (picture(2).convert("CMYK"), "TIFF", {}, ["CMYK to RGB"], picture(2)),
        (picture(0), "GIF", FRAMES, ["first frame"], None),
        (picture(0), "WEBP", FRAMES, ["first frame"], picture(0)),
        (picture(3).rotate(90), "PNG", {"exif": TURNED.tobytes()}, ["turned upright"], picture(3)),
        (CLEAR, "PNG", {}, ["transparent to white"], WHITE),
    ],
)
def test_odd_pictures_become_upright_rgb(shown, kind, settings, done, expected):
    image, what = open_picture(encoded(shown, kind, **settings))
    assert what == done or (expected is None and done[0] in what)
    assert image.mode == "RGB" and image.size == (16, 16)
    if expected is not None:
        np.testing.assert_array_equal(np.asarray(image), np.asarray(expected.convert("RGB")))


@pytest.mark.parametrize(
    ("kind", "largest", "done"),
    [
        (np.int32, 255, "8 bits of more"),
        (np.int32, 4095, "12 bits to 8"),
        (np.int32, 65535, "16 bits to 8"),
        (np.int32, 2**20 - 1, "20 bits to 8"),
        (np.uint16, 255, "8 bits of more"),
        (np.uint16, 1023, "10 bits to 8"),
        (np.uint16, 4000, "12 bits to 8"),
        (np.uint16, 16383, "14 bits to 8"),
        (np.uint16, 65535, "16 bits to 8"),
    ],
)
def test_grey_is_scaled_by_the_bits_that_its_values_fill(kind, largest, done):
    """As 12-bit cameras and scanners write, or programs that keep 8 bits in 32."""
    values = np.linspace(0, largest, 256).astype(kind).reshape(16, 16)
    image, found = open_picture(encoded(Image.fromarray(values), "TIFF"))
    assert found == [done]
    grey = np.asarray(image)[..., 0].ravel().astype(int)
    scale = 2 ** (int(done.split()[0]) - 8)
    np.testing.assert_array_equal(grey, values.ravel() // scale)
    assert grey[-1] >= 245


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_large_pictures_are_reduced(kind):
    image, done = open_picture(encoded(Image.new("RGB", (3 * LARGEST_SIDE, 300)), kind))
    assert done == ["reduced"] and image.size == (LARGEST_SIDE, 100)


@pytest.mark.parametrize("size", [(20000, 1), (1, 51), (102, 2)])
def test_extreme_shapes_are_refused_before_they_are_decoded(size, monkeypatch):
    content = encoded(Image.new("RGB", size), "PNG")
    assert open_picture(encoded(Image.new("RGB", (50, 1)), "PNG"))[0].size == (50, 1)
    monkeypatch.setattr(PngImageFile, "load", lambda picture: pytest.fail("it is decoded"))
    with pytest.raises(UnreadableError, match=f"extreme shape: {size[0]} x {size[1]} pixels"):
        open_picture(content)
