"""Pictures as data URIs, small enough for a page with hundreds of them."""

import base64
import io
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps, UnidentifiedImageError

from l2rm_jax.data.pictures import (
    UnreadableError,
    on_white,
    opened,
    read_picture,
    shrink_to,
    upright_picture,
)
from l2rm_jax.errors import first_line

SIDE = 360  # longer side in pixels; pages show them at about half, which is sharp on dense screens
QUALITY = 80  # of JPEG
# Bytes up to which files in formats that browsers show are embedded unchanged.
SMALL = 24 * 1024
PREFIXES = {
    "png": b"\x89PNG\r\n\x1a\n",
    "jpeg": b"\xff\xd8\xff",
    "gif": b"GIF8",
    "webp": b"RIFF",
}


class Thumbnail(NamedTuple):
    """A picture for a page.

    Attributes:
      uri: the data URI.
      size: width and height in pixels; None if the file is embedded unchanged.
    """

    uri: str
    size: tuple[int, int] | None = None


def make_thumbnail(
    picture: str | Path | bytes | Image.Image, *, side: int = SIDE, quality: int = QUALITY
) -> Thumbnail | str:
    """Read a picture for a page; or return the reason why it cannot be shown.

    Small files in formats that browsers show are embedded unchanged, other files as JPEG.

    Args:
      picture: the file, its content, or a Pillow picture.
      side: longer side in pixels after reducing.
      quality: of the JPEG after reducing, 1 to 95.
    """
    try:
        content = _content(picture)
    except UnreadableError as error:
        return str(error)
    kind = next((kind for kind, prefix in PREFIXES.items() if content.startswith(prefix)), None)
    if kind == "webp" and content[8:12] != b"WEBP":
        kind = None
    if kind and len(content) <= SMALL:
        return _as_uri(kind, content)
    return _reduced(content, side, quality)


def _content(picture: str | Path | bytes | Image.Image) -> bytes:
    if isinstance(picture, bytes):
        return picture
    if not isinstance(picture, Image.Image):
        return read_picture(picture)
    file = io.BytesIO()
    upright_picture(picture)[0].save(file, "PNG", compress_level=1)
    return file.getvalue()


def _reduced(content: bytes, side: int, quality: int) -> Thumbnail | str:
    try:
        with opened(content) as picture:
            shrink_to(picture, 2 * side)
            upright = ImageOps.exif_transpose(picture)
        if upright.has_transparency_data:
            upright = on_white(upright)
        upright = upright.convert("RGB")
        upright.thumbnail((side, side), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        upright.save(file, "JPEG", quality=quality, optimize=True)
    except UnidentifiedImageError:
        return "not a picture"
    except UnreadableError as error:
        return str(error)
    except Exception as error:  # decoders raise errors of many types
        return f"damaged ({first_line(error, 80)})"
    return _as_uri("jpeg", file.getvalue())._replace(size=upright.size)


def _as_uri(kind: str, content: bytes) -> Thumbnail:
    return Thumbnail(f"data:image/{kind};base64,{base64.b64encode(content).decode()}")
