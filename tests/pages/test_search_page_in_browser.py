"""The page of a search in a browser: pictures, words and regions, keys, phones, no network."""

import numpy as np
import pytest

from l2rm_jax.data import scenes
from l2rm_jax.pages.search import PageAlignment, PageHit, PageQuery, write_page

pytestmark = pytest.mark.slow

WORDS = ("two", "<script>alert(1)</script>", "balls")
BEST = {"two": 0, "<script>alert(1)</script>": 7, "balls": 3}  # region of each word
CURRENT = "document.querySelector('.word[aria-current]')?.textContent ?? null"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    world = scenes.generate(3, 0, "test")
    files = [folder / f"{n}.png" for n in range(3)]
    for scene, file in zip(world.scenes, files, strict=True):
        scenes.write_png(scene, file)
    weights = np.full((9, 3), 0.01)
    weights[list(BEST.values()), range(3)] = 0.2
    aligned = PageAlignment(WORDS, weights)
    hits = [
        PageHit(n + 1, 0.9 - n / 10, f"{n}.png", "a <script>", file, aligned if n < 2 else None)
        for n, file in enumerate(files)
    ]
    captions = [PageHit(1, 0.5, "caption 7", " ".join(WORDS), None, aligned)]
    hebrew = "\u05e9\u05e0\u05d9 \u05db\u05d3\u05d5\u05e8\u05d9\u05dd \u05d0\u05d3"
    queries = [
        PageQuery(" ".join(WORDS), hits),
        PageQuery("0.png", captions, files[0]),
        PageQuery(hebrew, [hits[1]._replace(alignment=aligned._replace(words=hebrew.split()))]),
    ]
    write_page(folder / "page.html", queries, title="<b>scenes</b>", subtitle="runs/mine")
    return (folder / "page.html").as_uri()


@pytest.fixture
def page(tab, events, address):
    tab.goto(address)
    yield tab
    assert events.requests == []


def test_pictures_are_visible_and_texts_are_texts(page):
    sizes = page.evaluate(
        "Promise.all([...document.images].map(async image => {"
        "await image.decode(); return [image.naturalWidth, image.width]; }))"
    )
    assert len(sizes) == 5 and all(natural == 192 and shown > 100 for natural, shown in sizes)
    assert page.text_content("h1") == "<b>scenes</b>"
    assert page.text_content(".caption") == "a <script>"
    assert page.text_content("h2") == " ".join(WORDS)
    assert page.evaluate("document.scripts.length") == 1


def test_regions_are_listed_while_a_word_is_pointed_at(page):
    for number, (word, region) in enumerate(BEST.items(), 1):
        page.hover(f"#query-1 .hit:first-child .word:nth-child({number})")
        assert page.evaluate(CURRENT) == word
        line = page.text_content("#query-1 .regions")
        assert line == f"33% of the weight, region {region + 1} (71%)"
    page.hover("h1")
    assert page.evaluate(CURRENT) is None and page.text_content("#query-1 .regions") == ""


def test_regions_of_a_caption_are_listed_below_the_query_s_picture(page):
    page.hover("#query-2 .word:nth-child(2)")
    assert "region 8" in page.text_content(".asked .regions")


def test_keys_reach_every_word(page):
    focused = "document.activeElement.textContent"
    for _ in range(4):  # three links to the queries, then the first words
        page.keyboard.press("Tab")
    assert page.evaluate(focused) == page.evaluate(CURRENT) == WORDS[0]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == page.evaluate(CURRENT) == WORDS[1]
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.closest('.hit').querySelector('.id').textContent"
                       ) == "1.png"  # fmt: skip
    page.keyboard.press("End")
    assert page.evaluate(focused) == page.evaluate(CURRENT) == WORDS[2]
    page.keyboard.press("Escape")
    assert page.evaluate(CURRENT) is None
    page.evaluate("document.querySelector('#query-3 .word').focus()")
    page.keyboard.press("ArrowLeft")  # onwards, as the text runs from right to left
    assert page.evaluate("[...document.activeElement.parentElement.children].indexOf("
                       "document.activeElement)") == 1  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(phone, address, scheme):
    phone.emulate_media(color_scheme=scheme)
    phone.goto(address)
    phone.tap(".word")
    assert phone.evaluate("document.documentElement.scrollWidth") == 360
    luminance = (
        "getComputedStyle(document.querySelector('{}')).{}.match(/\\d+/g).slice(0, 3)"
        ".reduce((sum, x) => sum + Number(x), 0) / 765"
    )
    ground = phone.evaluate(luminance.format("body", "backgroundColor"))
    for element in (".caption", ".id", ".regions", "h2"):
        assert abs(phone.evaluate(luminance.format(element, "color")) - ground) > 0.4
