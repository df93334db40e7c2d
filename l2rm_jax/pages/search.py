"""Write the page of a search: one HTML file with embedded pictures, which opens from disk.

The page needs no server and no network. A policy in its head (`Content-Security-Policy`) lets only
the style and the script of this package run, by their hashes, and forbids loading anything. Every
text is escaped, so the policy is a second safeguard.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from l2rm_jax.errors import DataError
from l2rm_jax.jobs.files import new_file
from l2rm_jax.pages.markup import content_policy, escape_text, read_parts
from l2rm_jax.pages.thumbnails import Thumbnail, make_thumbnail

LEVELS = 9  # shades of a word, not counting no shade
STRONGEST = 3  # multiple of a word's even share of the weight that gets the strongest shade


class PageAlignment(NamedTuple):
    """Alignment of the words of a pair with image regions.

    Attributes:
      words: the words, in order.
      weights: weight of each region with each word, >= 0, as `RetrievalModel.alignment` returns it,
        without padding. The sum over the regions determines the shade of the word. The page lists
        regions by number, from 1.
    """

    words: Sequence[str]
    weights: Float[np.ndarray, "R L"]


class PageHit(NamedTuple):
    """Image or caption found by a search.

    Attributes:
      rank: its rank, from 1.
      score: its similarity with the query.
      id: the user's name of it.
      caption: the caption; for an image, one of its captions, or None.
      picture: file of the image. None for a caption, or if there is no file.
      alignment: alignment of words with regions for the query and the hit; None without.
    """

    rank: int
    score: float
    id: str
    caption: str | None = None
    picture: str | Path | None = None
    alignment: PageAlignment | None = None


class PageQuery(NamedTuple):
    """Query with its hits.

    Attributes:
      text: the caption of the query, or the id of its image.
      hits: best first.
      picture: file of the query image. None for a caption.
    """

    text: str
    hits: Sequence[PageHit]
    picture: str | Path | None = None


def render_page(queries: Sequence[PageQuery], *, title: str, subtitle: str = "") -> str:
    """Return the page of some queries as self-contained HTML.

    Pictures are embedded, and reduced if they are large. If a picture cannot be shown, the page
    shows its id and the reason.

    Args:
      queries: at least one.
      title, subtitle: first lines of the page, such as the gallery and the model.

    Raises:
      DataError: there is no query, or an alignment does not fit its words.
    """
    if not queries:
        raise DataError("the page of a search: found no queries, expected at least one")
    thumbnail = cache(make_thumbnail)
    sections = [_query(number, query, thumbnail) for number, query in enumerate(queries, 1)]
    style, script = read_parts(__file__, "search.css"), read_parts(__file__, "search.js")
    policy = content_policy(style, script, images="data:")
    aligned = any(hit.alignment for query in queries for hit in query.hits)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape_text(title)}</title>
<style>{style}</style>
</head>
<body>
<header class="page">
<h1 dir="auto">{escape_text(title)}</h1>
{f'<p dir="auto">{escape_text(subtitle)}</p>' if subtitle else ""}
{_LEGEND if aligned else ""}
</header>
{_contents(queries) if len(queries) > 1 else ""}
<main>
{"".join(sections)}</main>
<script>{script}</script>
</body>
</html>
"""


def write_page(
    path: str | Path, queries: Sequence[PageQuery], *, title: str, subtitle: str = ""
) -> None:
    """Write `render_page` to a new file, which appears when it is complete.

    Raises:
      ConfigError: `path` exists already.
      DataError: as `render_page`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, "page") as unfinished:
        page = render_page(queries, title=title, subtitle=subtitle)
        unfinished.write_bytes(page.encode())


_LEGEND = """<p class="legend">Words with a larger weight in the score have a stronger colour and a
thicker underline. Point at a word, tap it, or move to it with <kbd>Tab</kbd> and the arrow keys,
to see the regions that it matched; <kbd>Esc</kbd> hides them.</p>"""


def _contents(queries: Sequence[PageQuery]) -> str:
    links = (
        f'<li><a href="#query-{number}" dir="auto">{escape_text(query.text)}</a></li>\n'
        for number, query in enumerate(queries, 1)
    )
    return f'<nav aria-label="Queries"><ol>\n{"".join(links)}</ol></nav>'


def _query(number: int, query: PageQuery, thumbnail: Callable[[Path], Thumbnail | str]) -> str:
    """Render the section of a query: hits with pictures are cards, captions are rows."""
    has_pictures = any(hit.picture for hit in query.hits)
    asked = ""
    if query.picture:
        stage = _stage(query.picture, query.text, "", thumbnail)
        asked = f'<div class="asked">{stage}<p class="regions" aria-live="polite"></p></div>'
    hits = "".join(_hit(hit, query, thumbnail) for hit in query.hits)
    kinds = f"{' by-picture' if asked else ''}{'' if has_pictures else ' rows'}"
    return f"""<section class="query{kinds}" id="query-{number}" aria-labelledby="text-{number}">
<h2 id="text-{number}" dir="auto">{escape_text(query.text)}</h2>
{asked}<ol class="hits">
{hits or "<li>nothing found</li>"}</ol>
</section>
"""


def _hit(hit: PageHit, query: PageQuery, thumbnail: Callable[[Path], Thumbnail | str]) -> str:
    stage = _stage(hit.picture, hit.id, hit.caption or "", thumbnail) if hit.picture else ""
    # A caption with an alignment is shown word by word, so do not repeat it as a whole.
    caption = hit.caption if hit.picture or not hit.alignment else None
    parts = [
        stage,
        f'<p class="facts"><span class="rank"><span class="hidden">rank </span>{hit.rank}</span> '
        f'<span class="score"><span class="hidden">score </span>{hit.score:.3f}</span> '
        f'<bdi class="id">{escape_text(hit.id)}</bdi></p>',
        f'<p class="caption" dir="auto">{escape_text(caption)}</p>' if caption else "",
    ]
    if hit.alignment:
        parts.append(_words(hit))
        if hit.picture or not query.picture:  # else regions are listed below the query's picture
            parts.append('<p class="regions" aria-live="polite"></p>')
    return f'<li class="hit">{"".join(part for part in parts if part)}</li>\n'


def _stage(
    picture: str | Path, id_: str, caption: str, thumbnail: Callable[[Path], Thumbnail | str]
) -> str:
    """Render a picture, or the reason why it is not shown."""
    shown = thumbnail(Path(picture))
    if isinstance(shown, str):
        note = f'<p><bdi>{escape_text(id_)}</bdi></p><p class="reason">{escape_text(shown)}</p>'
        return f'<div class="stage missing">{note}</div>'
    size = f' width="{shown.size[0]}" height="{shown.size[1]}"' if shown.size else ""
    # `uri` is one of our media types and base64, so nothing in it needs escaping.
    image = f'<img src="{shown.uri}" alt="{escape_text(caption or id_)}"{size} decoding="async">'
    return f'<div class="stage"><div class="frame">{image}</div></div>'


def _words(hit: PageHit) -> str:
    """Render the words as buttons with their regions, which `search.js` shows."""
    words, weights = hit.alignment
    weights = np.asarray(weights, np.float64)
    if weights.shape != (len(weights), len(words)):
        raise DataError(
            f"alignment of {hit.id!a}: found weights {list(weights.shape)}, expected "
            f"[{len(weights)}, {len(words)}] for {len(words)} words"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise DataError(f"alignment of {hit.id!a}: found negative or infinite weights or NaN")
    of_word = weights.sum(0)
    shares = of_word / max(of_word.sum(), 1e-30)
    levels = np.minimum(shares * len(words) / STRONGEST, 1) * LEVELS
    places = weights / np.maximum(of_word, 1e-30)
    buttons = " ".join(
        f'<button type="button" class="word w{level:.0f}" tabindex="{min(n, 1) * -1}" '
        f'data-share="{share:.3f}" data-regions="{_digits(place)}">{escape_text(word)}</button>'
        for n, (word, level, share, place) in enumerate(
            zip(words, levels, shares, places.T, strict=True)
        )
    )
    label = f"words and regions of hit {hit.rank}"
    return f'<p class="words" role="group" aria-label="{label}" dir="auto">{buttons}</p>'


def _digits(shares: Iterable[float]) -> str:
    """Encode shares in [0, 1] in thousandths, two base-36 digits each."""
    numbers = (round(1000 * float(share)) for share in shares)
    return "".join(np.base_repr(number, 36).lower().zfill(2) for number in numbers)
