"""Render examples of misaligned rows: a caption, its picture as stored, and after the repair."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL.Image import Image

from l2rm_jax.pages.markup import escape_text
from l2rm_jax.pages.thumbnails import make_thumbnail

_SIDE, _TEXT = 240, 200  # longer side of a picture in pixels, most characters of a caption


class Example(NamedTuple):
    """A row that was put back.

    Attributes:
      caption: its caption.
      ids: the user's names of its image as stored and after the repair.
      pictures: the pictures of both; None without pictures.
    """

    caption: str
    ids: tuple[str, str]
    pictures: tuple[str | Path | bytes | Image, str | Path | bytes | Image] | None


def render_examples(examples: Sequence[Example]) -> str:
    """Return the HTML of the examples; "" without any."""
    if not examples:
        return ""
    return f'<div class="examples">\n{"".join(map(_render, examples))}</div>\n'


def _render(example: Example) -> str:
    pictures = example.pictures or (None, None)
    titles = ("as stored", "after the repair")
    figures = "".join(map(_figure, titles, example.ids, pictures))
    text = example.caption if len(example.caption) <= _TEXT else f"{example.caption[:_TEXT]}..."
    caption = f'<div class="caption" dir="auto">{escape_text(text)}</div>'
    return f"<section>{caption}\n{figures}</section>\n"


def _figure(title: str, name: str, picture: str | Path | bytes | Image | None) -> str:
    shown = "" if picture is None else make_thumbnail(picture, side=_SIDE)
    image = ""
    if picture is not None and not isinstance(shown, str):
        image = f'<img src="{shown.uri}" alt="">'
    label = f"<figcaption>{title}: {escape_text(name)}</figcaption>"
    return f"<figure>{image}{label}</figure>\n"
