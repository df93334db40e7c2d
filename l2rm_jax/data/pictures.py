"""Pictures: convert all kinds of files to upright RGB."""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from l2rm_jax.errors import DataError, first_line
from l2rm_jax.jobs.regular_files import PICTURE, read_regular

LARGEST_SIDE = 2048  # of a picture that an encoder sees; larger ones are reduced
LARGEST_RATIO = 50  # of the sides; CLIP resizes the short side to 224, so the long one has 11,200
MOST_PIXELS = 1 << 26  # that are decoded at once; a large JPEG is decoded smaller
# Of pictures on the web. Others can start programs: Ghostscript, for example, for an EPS.
FORMATS = ("AVIF", "BMP", "GIF", "HEIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
_STRIP = 256  # rows that are converted at once
_GREY_BITS = (8, 10, 12, 14, 16)  # bits that cameras and scanners use, of the 16 or 32 in the file


class UnreadableError(Exception):
    """A picture cannot be used; the message is the reason written to `rejected.csv`."""


def upright_pictures(pictures: Sequence[str | Path | Image.Image]) -> list[Image.Image]:
    """Convert pictures, given as Pillow pictures or files, to upright RGB.

    Raises:
      DataError: there is no picture, or some cannot be used; the message lists all of them.
    """
    if not len(pictures):
        raise DataError("images: found none, expected at least one")
    found, problems = [], []
    for row, picture in enumerate(pictures):
        name = picture if isinstance(picture, str | Path) else f"images: number {row}"
        try:
            is_open = isinstance(picture, Image.Image)
            found.append((upright_picture if is_open else _read_picture)(picture)[0])
        except UnreadableError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise DataError(*problems)
    return found


def _read_picture(file: str | Path) -> tuple[Image.Image, list[str]]:
    if not isinstance(file, str | Path):
        raise UnreadableError(f"found a {type(file).__name__}, expected a Pillow picture or a file")
    return open_picture(read_picture(file))


def read_picture(file: str | Path) -> bytes:
    """Read the bytes of a picture.

    Raises:
      UnreadableError: there is no such file, it is none, or it is too large.
    """
    try:
        return read_regular(file, PICTURE)
    except DataError as error:
        raise UnreadableError(str(error).removeprefix(f"{file}: ")) from None


def open_picture(content: bytes) -> tuple[Image.Image, list[str]]:
    """Decode the bytes of a picture to upright RGB; result and errors as `upright_picture`."""
    with readable():
        return upright_picture(opened(content))


def opened(content: bytes) -> Image.Image:
    """Open a picture of one of `FORMATS`; nothing is decoded yet.

    Raises:
      UnidentifiedImageError: it is of no such format.
      UnreadableError: it is too large.
    """
    Image.init()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            known = [name for name in FORMATS if name in Image.OPEN]
            return Image.open(io.BytesIO(content), formats=known)
        except Image.DecompressionBombError as error:
            raise UnreadableError(f"too large: {first_line(error, 200)}") from None


def shrink_to(picture: Image.Image, side: int) -> None:
    """Have a JPEG decoded smaller, with sides of at least `side`.

    Raises:
      UnreadableError: still, too many pixels would be decoded.
    """
    whole = picture.size
    picture.draft(picture.mode, (side, side))
    # A progressive JPEG is decoded as a whole first.
    width, height = whole if picture.info.get("progressive") else picture.size
    if width * height > MOST_PIXELS:
        raise UnreadableError(
            f"too large: {width} x {height} pixels, expected at most {MOST_PIXELS:,} of them"
        )


def upright_picture(picture: Image.Image) -> tuple[Image.Image, list[str]]:
    """Convert a Pillow picture to upright RGB.

    * The EXIF orientation is applied.
    * Only the first frame of an animated picture is used.
    * Transparent parts become white.
    * Grey of 16 or 32 bits is scaled to 8 bits, by the number of bits that its values use; CMYK and
      palettes are converted.
    * A picture with a side above `LARGEST_SIDE` is reduced to it.

    Returns:
      The picture, and the conversions made, in a word or two each.

    Raises:
      UnreadableError: the file is not a picture, is damaged or too large, or has an extreme shape.
    """
    with readable():
        if max(picture.size) > LARGEST_RATIO * min(picture.size):
            raise UnreadableError(
                "extreme shape: {} x {} pixels, ".format(*picture.size)
                + f"expected a side of at most {LARGEST_RATIO} times the other"
            )
        done = ["first frame"] if getattr(picture, "is_animated", False) else []
        is_large = max(picture.size) > LARGEST_SIDE
        if is_large:
            shrink_to(picture, LARGEST_SIDE)
        picture.load()
        if picture.getexif().get(0x0112, 1) in range(2, 9):
            done.append("turned upright")
        picture = _as_rgb(ImageOps.exif_transpose(picture), done)
        if is_large:
            picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
            done.append("reduced")
        return picture, done


@contextmanager
def readable() -> Iterator[None]:
    """Raise an `UnreadableError` instead of the errors of Pillow."""
    try:
        yield
    except UnreadableError:
        raise
    except UnidentifiedImageError:
        raise UnreadableError("damaged picture: not a format of the web's pictures") from None
    except Exception as error:  # decoders raise errors of many types
        raise UnreadableError(f"damaged picture: {first_line(error, 200)}") from None


def _as_rgb(picture: Image.Image, done: list[str]) -> Image.Image:
    if picture.mode.startswith("I"):  # grey of 16 or 32 bits, not all of which may be used
        values = np.asarray(picture)
        filled = max(0, int(values.max())).bit_length()
        bits = next((each for each in _GREY_BITS if each >= filled), filled)
        done.append(f"{bits} bits to 8" if bits > 8 else "8 bits of more")
        grey = np.empty(values.shape, np.uint8)
        for top in range(0, len(values), _STRIP):
            grey[top : top + _STRIP] = values[top : top + _STRIP].clip(min=0) >> (bits - 8)
        return Image.fromarray(grey).convert("RGB")
    if picture.mode == "F":
        raise UnreadableError("damaged picture: found 32-bit numbers, expected a photograph")
    if picture.has_transparency_data:
        done.append("transparent to white")
        return on_white(picture)
    if picture.mode not in ("RGB", "L"):
        done.append(f"{picture.mode} to RGB")
    return picture.convert("RGB")


def on_white(picture: Image.Image) -> Image.Image:
    """Convert a picture with transparent parts to RGB, strip by strip."""
    result = Image.new("RGB", picture.size)
    for top in range(0, picture.height, _STRIP):
        box = (0, top, picture.width, min(top + _STRIP, picture.height))
        strip = picture.crop(box).convert("RGBA")
        white = Image.new("RGBA", strip.size, "white")
        result.paste(Image.alpha_composite(white, strip).convert("RGB"), box)
    return result
