"""Pictures from anywhere: large ones, many frames, and formats that could start a program."""

import io
import resource
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

from l2rm_jax.data.pictures import FORMATS, UnreadableError, open_picture
from l2rm_jax.pages.thumbnails import make_thumbnail

LIMIT = 1 << 20  # kB of memory of a process that opens a picture


def encoded(picture: Image.Image, kind: str, **settings) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **settings)
    return file.getvalue()


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
