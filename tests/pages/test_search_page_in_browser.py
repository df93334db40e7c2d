"""The page of a search in a browser: pictures, words and regions, keys, phones, no network."""

import numpy as np
import pytest

from l2rm_jax.data import scenes
from l2rm_jax.pages.search import PageAlignment, PageHit, PageQuery, write_page
from tests.browser import Browser, find_browser

pytestmark = pytest.mark.slow

if find_browser() is None:
    pytest.skip("no Chromium on the path", allow_module_level=True)

WORDS = ("two", "<script>alert(1)</script>", "balls")
BEST = {"two": 0, "<script>alert(1)</script>": 7, "balls": 3}  # region of each word
# Opacity of each cell of the visible overlay: 0 is a region that is not dimmed.
DIMMED = """[...document.querySelectorAll('#query-1 .hit:first-child .grid span')].map(
    cell => Number(getComputedStyle(cell).backgroundColor.match(/[\\d.]+(?=\\))/)[0]))"""
CURRENT = "document.querySelector('.word[aria-current]')?.textContent ?? null"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    world = scenes.generate(3, 0, "test")
    files = [folder / f"{n}.png" for n in range(3)]
    for scene, file in zip(world.scenes, files, strict=True):
        scenes.write_png(scene, file)
    weights = np.full((9, 3), 0.01)
    weights[list(BEST.values()), range(3)] = 0.2
    grid, listed = PageAlignment(WORDS, weights, (3, 3)), PageAlignment(WORDS, weights)
    hits = [PageHit(n + 1, 0.9 - n / 10, f"{n}.png", "a <script>", file, [grid, listed, None][n])
            for n, file in enumerate(files)]  # fmt: skip
    captions = [PageHit(1, 0.5, "caption 7", " ".join(WORDS), None, grid)]
    hebrew = "\u05e9\u05e0\u05d9 \u05db\u05d3\u05d5\u05e8\u05d9\u05dd \u05d0\u05d3"
    queries = [
        PageQuery(" ".join(WORDS), hits),
        PageQuery("0.png", captions, files[0]),
        PageQuery(hebrew, [hits[1]._replace(alignment=listed._replace(words=hebrew.split()))]),
    ]
    write_page(folder / "page.html", queries, title="<b>scenes</b>", subtitle="runs/mine")
    with Browser(folder / "profile") as browser:
        browser.resize(1280, 900)
        browser.page = folder / "page.html"
        yield browser


@pytest.fixture(autouse=True)
def opened(browser):
    browser.open(browser.page)
    yield
    assert browser.errors == [] and browser.requests == []


def test_pictures_are_visible_and_texts_are_texts(browser):
    sizes = browser.run(
        "Promise.all([...document.images].map(async image => {"
        "await image.decode(); return [image.naturalWidth, image.width]; }))"
    )
    assert len(sizes) == 5 and all(natural == 192 and shown > 100 for natural, shown in sizes)
    assert browser.run("document.querySelector('h1').textContent") == "<b>scenes</b>"
    assert browser.run("document.querySelector('.caption').textContent") == "a <script>"
    assert browser.run("document.querySelector('h2').textContent") == " ".join(WORDS)
    assert browser.run("document.scripts.length") == 1


def test_a_word_that_is_pointed_at_lights_its_regions(browser):
    for number, (word, region) in enumerate(BEST.items(), 1):
        browser.point_at(f"#query-1 .hit:first-child .word:nth-child({number})")
        assert browser.run(CURRENT) == word
        dimmed = browser.run(DIMMED)
        assert len(dimmed) == 9 and dimmed[region] == 0
        assert all(shade > 0.5 for n, shade in enumerate(dimmed) if n != region)
    line = browser.run("document.querySelector('#query-1 .regions').textContent")
    assert line == "33% of the weight, row 2, column 1 (71%)"
    boxes = browser.run("['.grid', 'img'].map(x => JSON.stringify(document.querySelector("
                        "'.hit:first-child ' + x).getBoundingClientRect()))")  # fmt: skip
    assert boxes[0] == boxes[1]
    browser.point_at("h1")
    assert browser.run(CURRENT) is None and browser.run(DIMMED) == []


def test_regions_that_are_no_grid_are_listed(browser):
    browser.point_at("#query-1 .hit:nth-child(2) .word:nth-child(3)")
    line = browser.run("document.querySelector('.hit:nth-child(2) .regions').textContent")
    assert line == "33% of the weight, region 4 (71%)"
    assert browser.run("document.querySelectorAll('.grid').length") == 0


def test_words_of_a_caption_light_regions_of_the_query_s_picture(browser):
    browser.point_at("#query-2 .word:nth-child(2)")
    assert browser.run("document.querySelectorAll('#query-2 .asked .grid .strong').length") == 1
    assert "row 3, column 2" in browser.run("document.querySelector('.asked .regions').textContent")


def test_keys_reach_every_word(browser):
    focused = "document.activeElement.textContent"
    for _ in range(4):  # three links to the queries, then the first words
        browser.press("Tab")
    assert browser.run(focused) == browser.run(CURRENT) == WORDS[0]
    browser.press("ArrowRight")
    assert browser.run(focused) == browser.run(CURRENT) == WORDS[1]
    browser.press("ArrowDown")
    assert browser.run("document.activeElement.closest('.hit').querySelector('.id').textContent"
                       ) == "1.png"  # fmt: skip
    browser.press("End")
    assert browser.run(focused) == browser.run(CURRENT) == WORDS[2]
    browser.press("Escape")
    assert browser.run(CURRENT) is None
    browser.run("document.querySelector('#query-3 .word').focus()")
    browser.press("ArrowLeft")  # onwards, as the text runs from right to left
    assert browser.run("[...document.activeElement.parentElement.children].indexOf("
                       "document.activeElement)") == 1  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(browser, scheme):
    browser.resize(360, 740, phone=True)
    browser.prefer(scheme)
    browser.run("document.querySelector('.word').click()")
    assert browser.run("document.documentElement.scrollWidth") == 360
    luminance = (
        "getComputedStyle(document.querySelector('{}')).{}.match(/\\d+/g).slice(0, 3)"
        ".reduce((sum, x) => sum + Number(x), 0) / 765"
    )
    ground = browser.run(luminance.format("body", "backgroundColor"))
    for element in (".caption", ".id", ".regions", "h2"):
        assert abs(browser.run(luminance.format(element, "color")) - ground) > 0.4
    browser.resize(1280, 900)
    browser.prefer("light")
