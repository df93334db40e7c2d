"""Page of a search: its texts, embedded pictures, and escaping of all texts."""

import base64
import hashlib
import io
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from l2rm_jax.data import scenes
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.pages.search import (
    PageAlignment,
    PageHit,
    PageQuery,
    render_page,
    write_page,
)
from l2rm_jax.pages.thumbnails import SIDE, make_thumbnail

HOSTILE = (
    "<script>alert(1)</script>",
    "\" onerror='alert(1)' x=\"",
    "</style></title><img src=x onerror=alert(1)>",
    "&lt;b&gt; &amp; \u202e right to left",
    "<!-- ",
)
ATTRIBUTES = {
    "alt", "aria-hidden", "aria-label", "aria-labelledby", "aria-live", "charset", "class",
    "content", "data-regions", "data-share", "decoding", "dir", "height", "href",
    "http-equiv", "id", "lang", "name", "role", "src", "tabindex", "type", "width",
}  # fmt: skip


class Page(HTMLParser):
    """Elements of a page, each with its attributes and its own text, in their order."""

    def __init__(self, page: str):
        super().__init__()
        self.elements: list[tuple[str, dict, list[str]]] = []
        self._open: list[tuple[str, dict, list[str]]] = []
        self.comments: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in ("img", "meta"):
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        if self._open:
            self._open[-1][2].append(data)

    def handle_comment(self, data):
        self.comments.append(data)

    def texts(self, tag: str, class_: str | None = None) -> list[str]:
        return [
            "".join(text) for name, attributes, text in self.elements
            if name == tag and class_ in (None, attributes.get("class", "").split(" ")[0])
        ]  # fmt: skip

    def attributes(self, tag: str) -> list[dict]:
        return [attributes for name, attributes, _ in self.elements if name == tag]


def alignment(words=("red", "ball"), regions=4) -> PageAlignment:
    rng = np.random.default_rng(0)
    return PageAlignment(words, rng.dirichlet(np.ones(regions), len(words)).T / 2)


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "scene.png"
    scenes.write_png(scenes.generate(1, 0, "test").scenes[0], path)
    return path


def test_hits_are_told_in_their_order(picture):
    hits = [
        PageHit(1, 0.61234, "photos/0417.jpg", "two dogs run", picture),
        PageHit(2, -1.5, "photos/0093.jpg", picture=picture),
    ]
    other = PageQuery("photos/0001.jpg", [PageHit(1, 0.5, "417", "a brown dog")], picture)
    text = render_page([PageQuery("a dog", hits), other], title="gallery", subtitle="runs/mine")
    page = Page(text)
    assert page.texts("h1") == page.texts("title") == ["gallery"] and "runs/mine" in text
    assert page.texts("h2") == page.texts("a") == ["a dog", "photos/0001.jpg"]
    assert page.texts("span", "rank") == ["1", "2", "1"]
    assert page.texts("span", "score") == ["0.612", "-1.500", "0.500"]
    assert page.texts("bdi", "id") == ["photos/0417.jpg", "photos/0093.jpg", "417"]
    assert page.texts("p", "caption") == ["two dogs run", "a brown dog"]
    alts = [attributes["alt"] for attributes in page.attributes("img")]
    assert alts == ["two dogs run", "photos/0093.jpg", "photos/0001.jpg"]
    assert "legend" not in text.partition("<body>")[2].partition("<script>")[0]


def test_a_query_without_hits_says_so():
    assert Page(render_page([PageQuery("a dog", [])], title="t")).texts("li") == ["nothing found"]
    with pytest.raises(DataError, match="no queries, expected at least one"):
        render_page([], title="t")


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_stay_texts(text, picture):
    aligned = alignment((text, "ball"))
    queries = [
        PageQuery(text, [PageHit(1, 0.5, text, text, picture, aligned)]),
        PageQuery(text, [PageHit(1, 0.5, text, text)], Path("none") / text.replace("/", "")),
    ]
    page = Page(render_page(queries, title=text, subtitle=text))
    assert [tag for tag, *_ in page.elements].count("script") == 1 and not page.comments
    assert {name for _, attributes, _ in page.elements for name in attributes} <= ATTRIBUTES
    assert page.attributes("img")[0]["src"].startswith("data:image/png;base64,")
    for found in ("h1", "title", "h2", "a"):
        assert set(page.texts(found)) == {text}
    assert page.texts("bdi", "id") == page.texts("p", "caption") == [text, text]
    assert page.texts("button")[0] == text == page.attributes("img")[0]["alt"]


def test_characters_that_a_page_cannot_hold_are_replaced(tmp_path):
    query = PageQuery("a\ud800b\0c\x1bd", [PageHit(1, 0.5, "x\udcff.jpg", "c", "gone\0.jpg")])
    write_page(tmp_path / "page.html", [query], title="t")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.texts("h2") == ["a\ufffdb\ufffdc\ufffdd"]
    assert page.texts("bdi", "id") == ["x\ufffd.jpg"]
    assert "no such file" in page.texts("p", "reason")[0]


def test_only_our_script_and_style_may_run(picture):
    page = Page(render_page([PageQuery("q", [PageHit(1, 0, "i", None, picture)])], title="t"))
    policy = next(x["content"] for x in page.attributes("meta") if "http-equiv" in x)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    for tag in ("script", "style"):
        (content,) = page.texts(tag)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
        assert "http:" not in content and "https:" not in content


def test_words_hold_their_weight_and_regions():
    weights = np.array([[0.3, 0.0, 0.01], [0.1, 0.0, 0.03]])
    hit = PageHit(1, 0.5, "i", "two red balls", None, PageAlignment(("two", "red", "x"), weights))
    page = Page(render_page([PageQuery("q", [hit])], title="t"))
    buttons = page.attributes("button")
    assert [x["data-share"] for x in buttons] == ["0.909", "0.000", "0.091"]
    assert [x["class"] for x in buttons] == ["word w8", "word w0", "word w1"]
    assert [x["tabindex"] for x in buttons] == ["0", "-1", "-1"]
    decoded = [
        [int(x["data-regions"][i : i + 2], 36) / 1000 for i in (0, 2)] for x in buttons
    ]  # fmt: skip
    assert decoded == [[0.75, 0.25], [0, 0], [0.25, 0.75]]
    assert not page.texts("p", "caption")  # its words are there instead


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (PageAlignment(["a"], np.ones((3, 2))), r"found weights \[3, 2\], expected \[3, 1\]"),
        (PageAlignment(["a"], np.full((3, 1), np.nan)), "negative or infinite weights or NaN"),
        (PageAlignment(["a"], np.full((3, 1), -0.1)), "negative or infinite weights or NaN"),
    ],
)
def test_faulty_alignments_are_refused(faulty, message):
    with pytest.raises(DataError, match=message):
        render_page([PageQuery("q", [PageHit(1, 0, "i", "c", None, faulty)])], title="t")


def decoded(uri: str) -> bytes:
    return base64.b64decode(uri.partition(",")[2])


def noise(path: Path, size: tuple[int, int], **settings) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **settings)
    return path


def test_pictures_are_reduced_upright_and_opaque(tmp_path, picture):
    small = make_thumbnail(picture)
    assert decoded(small.uri) == picture.read_bytes() and small.uri.startswith("data:image/png;")
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    turned = make_thumbnail(noise(tmp_path / "turned.jpg", (800, 400), exif=exif))
    with Image.open(io.BytesIO(decoded(turned.uri))) as shown:
        assert shown.size == turned.size == (SIDE // 2, SIDE) and not shown.getexif()
    Image.effect_noise((500, 500), 90).convert("RGBA").save(tmp_path / "clear.png")
    clear = Image.open(tmp_path / "clear.png")
    clear.putalpha(0)
    clear.save(tmp_path / "clear.png")
    with Image.open(io.BytesIO(decoded(make_thumbnail(tmp_path / "clear.png").uri))) as shown:
        assert shown.mode == "RGB" and shown.getextrema() == ((255, 255),) * 3


def test_pictures_that_cannot_be_shown_leave_their_id_and_the_reason(tmp_path):
    broken, cut = tmp_path / "broken.png", tmp_path / "cut.png"
    broken.write_text("no picture")
    cut.write_bytes(noise(tmp_path / "whole.png", (300, 300)).read_bytes()[:-5000])
    files = (tmp_path / "gone.png", broken, cut, tmp_path)
    hits = [PageHit(n, 0, f"id {n}", None, file) for n, file in enumerate(files)]
    page = Page(render_page([PageQuery("q", hits)], title="t"))
    assert not page.attributes("img")
    reasons = page.texts("p", "reason")
    for reason, expected in zip(
        reasons, ("no such file", "not a picture", "damaged (", "found a directory"), strict=True
    ):
        assert reason.startswith(expected)
    assert [text for text in page.texts("bdi") if text.startswith("id")] == [
        f"id {n}" for n in range(4) for _ in range(2)
    ]
    assert str(tmp_path) not in "".join(reasons)  # a page may be sent to others


def test_a_page_overwrites_nothing_and_appears_whole(tmp_path):
    path, queries = tmp_path / "new" / "page.html", [PageQuery("q", [])]
    write_page(path, queries, title="t")
    assert path.read_text(encoding="utf-8") == render_page(queries, title="t")
    with pytest.raises(ConfigError, match="already exists"):
        write_page(path, [PageQuery("other", [])], title="t")
    with pytest.raises(DataError):
        write_page(tmp_path / "new" / "none.html", [], title="t")
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    assert path.read_text(encoding="utf-8") == render_page(queries, title="t")
