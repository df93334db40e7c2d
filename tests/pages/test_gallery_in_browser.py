"""The page of an audit in a browser: many pairs, one pair, access for everyone, no network."""

from pathlib import Path

import numpy as np
import pytest

from l2rm_jax.judging.judgement import KINDS, NEAR_DUPLICATE
from l2rm_jax.pages.gallery import Gallery, write_gallery
from tests.pages.galleries import HOSTILE, TOP, make_gallery
from tests.pages.gallery_page import (
    FRAME,
    click,
    decisions,
    open_page,
    rows,
    search,
    selected,
    text,
)

pytestmark = pytest.mark.slow

MANY = 100_000
# Contrast of a text with what lies behind it, by the formula of WCAG 2.
CONTRAST = """(element => {
    const parse = colour => colour.match(/[\\d.]+/g).map(Number);
    let behind = element;
    while ((parse(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0)
        behind = behind.parentElement;
    const light = ([r, g, b]) => [r, g, b].map(x => x / 255)
        .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
        .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
    const [a, b] = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor]
        .map(colour => light(parse(colour))).sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05); })"""
TEXTS = (
    "h1", ".verdict p", "summary", "td", "th", ".doors button[aria-pressed=true]", "#door-note",
    ".doors button[aria-pressed=false]", "#filters button[aria-pressed=true]",
    ".row.decided .words",
    "#filters button:disabled", "#filters button[aria-pressed=false] .count", "#status", "kbd",
    ".row[aria-selected=true] .words", ".row[aria-selected=true] .lead", ".row .mark.wrong",
    ".row .mark.fits", ".row .mark.unsure", "#caption", ".facts strong", ".facts span", ".decision",
    ".judgement", ".judgement strong", "#pair h3", ".proposal .words", ".share", ".captions li",
    "#keys button", ".key", "#search",
)  # fmt: skip


@pytest.fixture(scope="module")
def many(folder) -> Gallery:
    gallery = make_gallery(MANY)
    write_gallery(folder / "many.html", gallery)
    return gallery


# Many pairs.


def test_a_hundred_thousand_pairs_scroll_to_the_last(tab, events, folder, many):
    open_page(tab, folder / "many.html")
    first = rows(tab)
    assert [place for place, _, _ in first] == list(range(1, len(first) + 1))
    assert first[0][1].split("\n")[1] == HOSTILE[0]
    assert tab.evaluate("document.querySelectorAll('.row').length") < 30
    tab.evaluate("(box => { box.scrollTop = box.scrollHeight; })(document.querySelector('#pairs'))")
    place, shown, whole = rows(tab)[-1]
    assert place == MANY and whole and many.captions[many.judgement.order[-1]] in shown
    tab.evaluate("document.querySelector('#pairs').focus()")
    tab.keyboard.press("End")
    assert selected(tab) == many.judgement.order[-1]
    assert events.requests == []


def test_filters_and_search_of_many(tab, events, folder, many):
    open_page(tab, folder / "many.html")
    findings = many.judgement
    for kind in range(len(KINDS)):
        button = f'#filters [data-filter="{kind}"]'
        count = int((findings.kind == kind).sum())
        assert text(tab, button).endswith(f" {count:,}")
        click(tab, button)
        if count:
            expected = findings.order[findings.kind[findings.order] == kind]
            assert tab.evaluate("list.view.length") == count
            np.testing.assert_array_equal(tab.evaluate("[...list.view.slice(0, 9)]"), expected[:9])
    click(tab, '#filters [data-filter="all"]')
    where = [text.lower() for text in many.captions]
    named = [many.ids[image].lower() for image in findings.image_of]
    for words in ("man big two", "GRASS the", HOSTILE[1], many.ids[77], "4321"):
        search(tab, words)
        expected = [row for row in findings.order if words.lower() in where[row]
                    or words.lower() in named[row] or words == str(row)]  # fmt: skip
        assert tab.evaluate("[...list.view]") == expected and expected
        tab.evaluate("document.querySelector('#search').value = ''")
    assert events.requests == []


def test_a_list_taller_than_an_element_can_be_scrolls_to_every_pair(page):
    page.evaluate(f"list.show(new Int32Array(1_000_000), {999_999})")
    assert rows(page)[-1][0] == 1_000_000
    page.evaluate("document.querySelector('#pairs').scrollTop /= 2")
    middle = rows(page)
    assert abs(middle[0][0] - 500_000) < 10
    page.mouse.move(200, 600)
    page.mouse.wheel(0, 112)
    page.evaluate(FRAME)
    assert rows(page)[0][0] - middle[0][0] == 2  # a wheel moves it as any list
    page.evaluate("document.querySelector('#pairs').scrollTop = 0")
    assert rows(page)[0][0] == 1


# One pair.


def test_a_pair_is_shown_with_its_picture_suspicion_and_proposals(page, few):
    findings, row = few.judgement, int(few.judgement.order[10])
    page.evaluate(f"refresh({row})")
    assert text(page, "#caption") == few.captions[row]
    facts = text(page, ".facts")
    assert f"suspicion {findings.posterior[row]:.0%}" in facts and f"row {row}" in facts
    assert few.ids[findings.image_of[row]] in facts
    proposals = page.evaluate("[...document.querySelectorAll('.proposal')].map(x => x.innerText)")
    assert len(proposals) == TOP + 1
    for n, (key, line) in enumerate(zip(["1", "2", "3", "n"], proposals, strict=True)):
        words, share = "none of these fits", findings.none_fits[row]
        if n < TOP:
            share = findings.probability[row, n]
            words = " ".join(few.captions[findings.proposal[row, n]].split())
        assert line.split("\n")[0] == key and words.replace("\ud83d", "\ufffd") in line
        assert line.endswith(f"{share:.0%}")
    lists = page.evaluate("""[...document.querySelectorAll('.captions')].map(list =>
        [list.previousSibling.textContent, ...[...list.children].map(x => x.textContent)])""")
    (title, *said), (_, *others) = lists
    assert title == "Captions of the most similar trusted pictures" and len(others) == 4
    expected = [" ".join(findings.said[place].split()) for place in findings.witness[row]]
    assert [" ".join(words.split()) for words in said] == [
        words.replace("\ud83d", "\ufffd") for words in expected
    ]
    colour = page.evaluate("""(async () => { const image = document.querySelector('.picture img');
        await image.decode(); const canvas = document.createElement('canvas');
        const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);
        return [...context.getImageData(5, 5, 1, 1).data]; })()""")
    image = int(findings.image_of[row])
    assert colour == [image, 80, 255 - image, 255]


def test_texts_stay_texts(page, events, few):
    for row, hostile in zip(few.judgement.order, HOSTILE, strict=False):
        page.evaluate(f"refresh({row})")
        shown = " ".join(hostile.replace("\ud83d", "\ufffd").split())
        assert page.evaluate("document.querySelector('#caption').textContent") == shown
        assert shown in page.evaluate("document.querySelector('.facts').textContent")
    assert page.evaluate("document.querySelectorAll('main script, main b, main i').length") == 0
    assert text(page, "h1") == "<b>data</b>: 200 pairs"
    assert events.dialogs == []


def test_pictures_that_are_not_embedded_come_from_their_files(page, events, few):
    embedded = page.evaluate("[...data.embedded.keys()]")
    images = [image for image in range(39) if image not in embedded]
    row = int(np.flatnonzero(few.judgement.image_of == images[0])[0])
    page.evaluate(f"refresh({row})")
    assert page.evaluate("document.querySelector('.picture img').decode().then(() => "
                    "document.querySelector('.picture img').naturalWidth)") == 60  # fmt: skip
    assert [Path(url).name for url in events.requests] == [f"{images[0]}%20%3Cb%3E.png"]
    page.evaluate(f"refresh({int(np.flatnonzero(few.judgement.image_of == 39)[0])})")
    page.evaluate("new Promise(done => { const wait = () => document.querySelector('.picture img')"
             " ? setTimeout(wait, 10) : done(); wait(); })")  # fmt: skip
    shown = text(page, ".picture")
    assert "cannot be shown" in shown and "39%20%3Cb%3E.png" in shown
    events.errors.clear()  # of the file that is not there


def test_without_photographs_captions_of_near_images_stand_in(page, folder, few):
    open_page(page, folder / "features.html")
    row = int(few.judgement.order[0])
    shown = text(page, ".picture")
    assert "no photographs" in shown and "three most similar images" in shown
    near = few.judgement.nearest_images[few.judgement.image_of[row]]
    firsts = [np.flatnonzero(few.judgement.image_of == image)[0] for image in near]
    listed = page.evaluate("[...document.querySelectorAll('.picture li')].map(x => x.textContent)")
    assert listed == [
        " ".join(few.captions[first].replace("\ud83d", "\ufffd").split()) for first in firsts
    ]


# For everyone.


def test_keys_of_one_letter_can_be_turned_off_and_buttons_do_the_same(page, few):
    page.keyboard.type("?")
    assert page.evaluate("document.querySelector('#help').open")
    page.keyboard.type("y")  # not while the help is open
    click(page, "#letters")
    page.keyboard.press("Escape")
    page.keyboard.type("yn1")
    assert decisions(page) == []
    click(page, "#keys [aria-keyshortcuts=n]")
    page.evaluate("document.querySelector('.proposal').focus()")
    click(page, ".proposal")
    assert [line["decision"] for line in decisions(page)] == ["wrong", "wrong"]
    assert page.evaluate("document.activeElement.id") == "pair"  # the focus is not lost
    assert few.captions[selected(page)].split("\n")[0].strip() in text(page, "#announced")


def test_the_list_is_a_listbox_that_arrows_move_in(page, few):
    page.evaluate("document.querySelector('#pairs').focus()")
    for key, place in (
        ("ArrowDown", 2),
        ("ArrowDown", 3),
        ("ArrowUp", 2),
        ("End", 200),
        ("Home", 1),
    ):
        page.keyboard.press(key)
        page.evaluate(FRAME)
        active = page.evaluate("""(row => [row.getAttribute('aria-selected'), row.ariaPosInSet,
            row.ariaSetSize, row.getAttribute('role')])(document.getElementById(
            document.querySelector('#pairs').getAttribute('aria-activedescendant')))""")
        assert active == ["true", str(place), "200", "option"]
    assert page.evaluate("document.querySelectorAll('[aria-selected=true]').length") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_the_contrast_that_wcag_asks_for(page, few, scheme):
    page.emulate_media(color_scheme=scheme)
    page.evaluate("document.querySelector('details').open = true")
    page.keyboard.type("nyunkkk")
    for selector in TEXTS:
        element = f"document.querySelector('{selector}')"
        assert page.evaluate(f"{element} !== null"), selector
        assert page.evaluate(f"{CONTRAST}({element})") >= 4.5, selector
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(21, 23, 26)") is (scheme == "dark")


def test_a_phone_shows_it_without_scrolling_sideways(phone, folder, few):
    open_page(phone, folder / "few.html")
    phone.evaluate(f"refresh({int(np.flatnonzero(few.judgement.kind == NEAR_DUPLICATE)[0])})")
    assert phone.evaluate("document.documentElement.scrollWidth") == 360
    phone.evaluate("document.querySelector('#pairs').scrollIntoView()")
    inside = phone.evaluate(
        "[...document.querySelectorAll('#keys button, #caption, .picture img')].map(x => {"
        "const at = x.getBoundingClientRect();"
        "return at.left >= 0 && at.right <= 360 && at.bottom <= 740; })"
    )
    assert all(inside)
