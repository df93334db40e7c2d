"""Write the page of an audit: one HTML file on which a person views pairs and decides.

The page needs no server and no network. It contains the most suspicious pairs: columns of numbers
as typed arrays and texts as UTF-8, each a gzip block in base64 that the browser unpacks. A policy
in its head (`Content-Security-Policy`) lets only the style and the script of this package run, by
their hashes, and lets only pictures be loaded, from the page itself and from disk. The script shows
texts of the data only as text, so the policy is a second safeguard.
"""

import base64
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from string import Template
from typing import BinaryIO, NamedTuple
from urllib.parse import quote

import numpy as np
from jaxtyping import Float, Int
from PIL.Image import Image

from l2rm_jax.jobs.files import new_file
from l2rm_jax.judging import Judgement
from l2rm_jax.judging.judgement import KINDS
from l2rm_jax.pages.examples import Example, render_examples
from l2rm_jax.pages.markup import content_policy, escape_text, read_parts
from l2rm_jax.pages.thumbnails import make_thumbnail

SCRIPTS = ("gallery_data.js", "gallery_decisions.js", "gallery_list.js", "gallery_pair.js",
           "gallery.js")  # fmt: skip
LISTED = 100_000  # most suspicious pairs in a page; browsers can read about ten times as many
SIDE, QUALITY = 288, 70  # of embedded pictures: about 15 kB each
ROWS = 65_536  # rows of a column, or texts, converted at once
PIECE = 3 * 2**18  # bytes of gzip in one script element; a multiple of 3, which base64 takes whole
HEAD = '<th scope="col">'
UNKNOWN = 2**16 - 1  # code of NaN in a column of 16 bits; numbers have the codes below


class Gallery(NamedTuple):
    """Contents of the page.

    Attributes:
      title: the data's name and size and the seed, in one line.
      key: hash of the audit. The browser stores decisions under it, as pages may share a storage.
      pairs: fingerprint of the pairs, which `decisions.csv` names.
      verdict: the first sentences of the report.
      details: tables on how the pairs were judged: title, header and rows.
      judgement: judgement of the pairs. If a picture cannot be shown, the page shows captions of
        the nearest images instead.
      captions: [pairs]
      ids: [images] the user's name of each image.
      pictures: [images] files of the images, their contents, or Pillow pictures; None if there are
        only features.
      review: pairs of the blind review, in display order.
      review_weight: 1 / probability that each of these was drawn, for `decisions.csv`.
      goal: sentence on the decisions that are required, shown in the review until all are made.
      examples: rows that were misaligned, shown below the verdict.
      shown: number of the most suspicious pairs whose picture is embedded in the file. Pictures of
        the review are always embedded; others are loaded from their files when a pair is selected.
      word: name of the number of a pair for a person: line or row.
      lines: [pairs] this number; None: rows of the data.
      decided: decisions on pairs: row, decision, row of the caption taken (-1: none), and view.
      command: shell command that uses the decisions of the page; "" if none is known.
    """

    title: str
    key: str
    pairs: str
    verdict: Sequence[str]
    details: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]
    judgement: Judgement
    captions: Sequence[str]
    ids: Sequence[str]
    pictures: Sequence[str | Path | bytes | Image] | None
    review: Int[np.ndarray, " n"]
    review_weight: Float[np.ndarray, " n"]
    shown: int
    word: str = "row"
    lines: Int[np.ndarray, " pairs"] | None = None
    decided: Sequence[tuple[int, str, int, str]] = ()
    command: str = ""
    examples: Sequence[Example] = ()
    goal: str = ""


def write_gallery(path: str | Path, gallery: Gallery) -> None:
    """Write the page to a new file, which appears when it is complete.

    It lists the 100,000 most suspicious pairs and the pairs of the review.

    The same gallery gives the same bytes, with the same versions of zlib and Pillow. The page is
    written in pieces, so memory does not grow with the number of pairs.

    Raises:
      ConfigError: `path` exists already.
    """
    path, pairs = Path(path), len(gallery.judgement)
    gallery, rows = _narrowed(gallery)
    style = read_parts(__file__, "gallery.css", "examples.css")
    script = read_parts(__file__, *SCRIPTS)
    before, after = read_parts(__file__, "gallery.html").split("$data")
    values = {
        "policy": content_policy(style, script, images="'self' data: file:"),
        "style": style,
        "script": script,
        "title": escape_text(gallery.title),
        "verdict": "".join(f'<p dir="auto">{escape_text(text)}</p>\n' for text in gallery.verdict)
        + render_examples(gallery.examples),
        "details": _details(gallery.details),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, "gallery") as unfinished, unfinished.open("wb") as file:
        file.write(Template(before).substitute(values).encode())
        _write_about(file, gallery, pairs)
        for name, pieces in _columns(gallery.judgement):
            _write_block(file, name, pieces)
        if rows is not None:
            _write_block(file, "row", _slices(rows, "<i4"))
        if gallery.lines is not None:
            _write_block(file, "line", _slices(gallery.lines, "<i4"))
        if gallery.judgement.said:
            _write_block(file, "witness", _slices(gallery.judgement.witness, "<i4"))
            _write_block(file, "said", _lines(gallery.judgement.said))
        _write_block(file, "captions", _lines(gallery.captions))
        _write_block(file, "ids", _lines(gallery.ids))
        if gallery.pictures is not None:
            _write_block(file, "files", _lines(_addresses(gallery.pictures, path.parent)))
            _write_pictures(file, gallery)
        file.write(Template(after).substitute(values).encode())


def _details(tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]]) -> str:
    """Render the tables, collapsed until the user opens them."""
    if not tables:
        return ""

    def line(texts: Sequence[str], start: str, end: str) -> str:
        return f"<tr>{''.join(f'{start}{escape_text(text)}{end}' for text in texts)}</tr>\n"

    inner = "".join(
        f"<table>\n<caption>{escape_text(title)}</caption>\n"
        f"<thead>{line(header, HEAD, '</th>')}</thead>\n"
        f"<tbody>{''.join(line(row, '<td>', '</td>') for row in rows)}</tbody>\n</table>\n"
        for title, header, rows in tables
    )
    return (
        "<details>\n<summary>How this was judged</summary>\n"
        f'<div class="tables" tabindex="0" role="group" aria-label="Tables">\n{inner}</div>\n'
        "</details>\n"
    )


def _narrowed(gallery: Gallery) -> tuple[Gallery, Int[np.ndarray, " rows"] | None]:
    """Restrict the gallery to the pairs of the page; return their rows in the data, None if all."""
    if len(gallery.judgement) <= LISTED:
        return gallery, None
    judgement = listed(gallery.judgement, gallery.review, LISTED)
    rows = rows_needed(judgement)
    images, review = np.unique(judgement.image_of[rows]), np.asarray(gallery.review)
    narrowed = gallery._replace(
        judgement=taken(judgement, rows, images),
        captions=[gallery.captions[row] for row in rows],
        ids=[gallery.ids[image] for image in images],
        pictures=gallery.pictures and [gallery.pictures[image] for image in images],
        review=np.searchsorted(rows, review),
        lines=None if gallery.lines is None else gallery.lines[rows],
    )
    return narrowed, rows


def listed(judgement: Judgement, review: Int[np.ndarray, " n"], most: int) -> Judgement:
    """Return the judgement with only the most suspicious pairs and the review in its order."""
    chosen = np.zeros(len(judgement), bool)
    chosen[judgement.order[:most]] = True
    chosen[review] = True
    return replace(judgement, order=judgement.order[chosen[judgement.order]])


def rows_needed(judgement: Judgement) -> Int[np.ndarray, " rows"]:
    """Return the rows of which the page shows anything, ascending.

    They are the pairs in the order, all captions of their images, the proposed captions, and the
    first caption of each of the nearest images, shown if a picture cannot be shown.
    """
    image, order = judgement.image_of, judgement.order
    is_shown = np.zeros(int(image.max()) + 1, bool)
    is_shown[image[order]] = True
    needed = is_shown[image]
    proposals = judgement.proposal[order].ravel()
    needed[proposals[proposals >= 0]] = True
    if len(judgement.nearest_images):
        stored, first = np.unique(image, return_index=True)
        near = np.unique(judgement.nearest_images[np.flatnonzero(is_shown)])
        needed[first[np.isin(stored, near)]] = True
    return np.flatnonzero(needed)


def taken(
    judgement: Judgement, rows: Int[np.ndarray, " rows"], images: Int[np.ndarray, " images"]
) -> Judgement:
    """Restrict the judgement to the given pairs and images, renumbered within these.

    Args:
      judgement: judgement of all pairs.
      rows: the pairs, ascending; they include the pairs of the order.
      images: the images of these pairs, ascending.
    """

    def place(numbers: np.ndarray, among: np.ndarray) -> np.ndarray:
        """Return the places of numbers; -1 if missing."""
        at = np.searchsorted(among, numbers).clip(max=len(among) - 1)
        return np.where(among[at] == numbers, at, -1)

    columns = ("posterior", "probability", "none_fits", "information", "kind", "witness")
    return replace(
        judgement,
        **{name: getattr(judgement, name)[rows] for name in columns},
        image_of=place(judgement.image_of[rows], images),
        proposal=place(judgement.proposal[rows], rows),
        order=place(judgement.order, rows),
        nearest_images=place(judgement.nearest_images[images], images)
        if len(judgement.nearest_images)
        else judgement.nearest_images,
    )


def _write_about(file: BinaryIO, gallery: Gallery, pairs: int) -> None:
    """Write all but the columns as JSON, with `<` escaped: `</script>` would end the element."""
    low, high = _range(gallery.judgement.information)
    about = {
        "key": gallery.key,
        "fingerprint": gallery.pairs,
        "kinds": KINDS,
        "pairs": pairs,
        "word": gallery.word,
        "decided": [
            [int(row), what, int(taken), view] for row, what, taken, view in gallery.decided
        ],
        "command": gallery.command,
        "goal": gallery.goal,
        "top": gallery.judgement.proposal.shape[1],
        "information": [low, high],
        "review": np.asarray(gallery.review).tolist(),
        "weights": np.asarray(gallery.review_weight, np.float64).tolist(),
    }
    text = json.dumps(about).replace("<", "\\u003c")
    file.write(f'<script type="application/json" id="about">{text}</script>\n'.encode())


def _range(numbers: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Return the lowest and highest finite number; a range of width 1 if they are equal."""
    finite = numbers[np.isfinite(numbers)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    return (low, high) if low < high else (low, low + 1)


def _columns(found: Judgement) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield names and bytes of the columns, as `gallery_data.js` reads them: little-endian."""
    for name in ("posterior", "probability", "none_fits"):
        yield name, _codes(getattr(found, name), 0.0, 1.0)
    yield "information", _codes(found.information, *_range(found.information))
    yield "kind", _slices(found.kind, "u1")
    named = {"image": found.image_of, "proposal": found.proposal, "order": found.order}
    for name, rows in named.items():
        yield name, _slices(rows, "<i4")
    if len(found.nearest_images):
        yield "near", _slices(found.nearest_images, "<i4")


def _slices(column: np.ndarray, dtype: str) -> Iterator[bytes]:
    for start in range(0, len(column), ROWS):
        yield column[start : start + ROWS].astype(dtype).tobytes()


def _codes(column: np.ndarray, low: float, high: float) -> Iterator[bytes]:
    """Encode numbers in [low, high] as 16 bits: 0 to 65534, and `UNKNOWN` for NaN."""
    for start in range(0, len(column), ROWS):
        share = (column[start : start + ROWS].astype(np.float64) - low) / (high - low)
        codes = np.rint(share.clip(0, 1) * (UNKNOWN - 1))
        yield np.where(np.isnan(share), UNKNOWN, codes).astype("<u2").tobytes()


def _lines(texts: Iterable[str]) -> Iterator[bytes]:
    """Encode texts as UTF-8, one per line, with white space collapsed as a browser shows it."""
    lines, separator = [], b""
    for text in texts:
        lines.append(" ".join(text.split()))
        if len(lines) == ROWS:
            yield separator + _utf8("\n".join(lines))
            lines, separator = [], b"\n"
    if lines:
        yield separator + _utf8("\n".join(lines))


def _utf8(text: str) -> bytes:
    """Encode as UTF-8; lone surrogates, which it cannot represent, become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _write_block(file: BinaryIO, name: str, pieces: Iterable[bytes]) -> None:
    """Write bytes as gzip in base64, in script elements of at most `PIECE` bytes of gzip each.

    Base64 has no `<`, so nothing in a block can end its element.
    """
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)  # 31: gzip, here without a time in its header
    start, end = f'<script type="application/gzip" data-block="{name}">'.encode(), b"</script>\n"
    packed = bytearray()
    for piece in chain(map(packer.compress, pieces), map(packer.flush, (zlib.Z_FINISH,))):
        packed += piece
        while len(packed) > PIECE:
            file.write(start + base64.b64encode(packed[:PIECE]) + end)
            del packed[:PIECE]
    file.write(start + base64.b64encode(packed) + end)


def _addresses(pictures: Iterable[str | Path | bytes | Image], folder: Path) -> Iterator[str]:
    """Yield addresses relative to the page's `folder`, so that both can be moved together."""

    @cache
    def prefix(parent: str) -> str:
        return os.path.relpath(parent or ".", folder)

    for picture in pictures:
        if not isinstance(picture, str | Path):  # it has no file; the page shows its neighbours
            yield ""
            continue
        parent, name = os.path.split(picture)
        yield quote(os.fsencode(os.path.join(prefix(parent), name)))


def _write_pictures(file: BinaryIO, gallery: Gallery) -> None:
    """Write the pictures of the review and of the most suspicious pairs, each once.

    Pictures that cannot be read are left out.
    """
    found = gallery.judgement
    pairs = np.concatenate([gallery.review, found.order[: gallery.shown]]).astype(np.int64)
    for image in dict.fromkeys(found.image_of[pairs].tolist()):
        shown = make_thumbnail(gallery.pictures[image], side=SIDE, quality=QUALITY)
        if not isinstance(shown, str):
            kind, content = shown.uri.removeprefix("data:").split(";base64,")
            element = f'<script type="{kind}" data-image="{image}">{content}</script>\n'
            file.write(element.encode())
