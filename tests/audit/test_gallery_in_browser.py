"""The page of an audit in a browser: many pairs, keys, the blind review, downloads, no network."""

import csv
import io
import time
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax.audit.findings import ALTERNATE, KINDS
from l2rm_jax.audit.gallery import Gallery, write_gallery
from l2rm_jax.audit.review import check_sample, read_decisions
from tests.audit.galleries import HOSTILE, TOP, make_gallery, write_picture
from tests.browser import Browser, find_browser

if find_browser() is None:
    pytest.skip("no Chromium on the path", allow_module_level=True)

MANY = 100_000
READY = """new Promise(resolve => {
    const wait = () => document.querySelector('main[aria-busy]') ? setTimeout(wait, 10) : resolve();
    wait(); })"""
FRAME = "new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))"
# Rows of the list that are in view, from the top: place in the list, and the text.
ROWS = """(() => { const box = document.querySelector('#pairs').getBoundingClientRect();
    return [...document.querySelectorAll('.row')].filter(row => row.checkVisibility())
        .map(row => [row.getBoundingClientRect(), row])
        .filter(([at]) => at.bottom > box.top + 1 && at.top < box.bottom - 1)
        .sort(([a], [b]) => a.top - b.top)
        .map(([at, row]) => [Number(row.ariaPosInSet), row.innerText, at.bottom <= box.bottom + 1]);
    })()"""
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
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("gallery")


@pytest.fixture(scope="module")
def few(folder) -> Gallery:
    """200 pairs of 40 images; the picture of the last is missing, some are not embedded."""
    files = [folder / f"{n} <b>.png" for n in range(40)]
    for number, file in enumerate(files[:39]):
        write_picture(file, number)
    gallery = make_gallery(200, pictures=files)
    # The review has pairs of the first 20 images alone, so that others are loaded from their files.
    review = gallery.review[gallery.findings.image[gallery.review] < 20]
    gallery = gallery._replace(review=review, review_weight=gallery.review_weight[: len(review)])
    write_gallery(folder / "few.html", gallery)
    write_gallery(folder / "features.html", gallery._replace(pictures=None, key="features"))
    return gallery


@pytest.fixture(scope="module")
def many(folder) -> Gallery:
    gallery = make_gallery(MANY)
    write_gallery(folder / "many.html", gallery)
    return gallery


@pytest.fixture(scope="module")
def browser(folder):
    with Browser(folder / "profile") as browser:
        browser.resize(1280, 900)
        browser.send(
            "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder / "downloads")
        )
        yield browser


@pytest.fixture
def page(browser, folder, few):
    """The page of 200 pairs, newly opened and without decisions."""
    open_page(browser, folder / "few.html")
    browser.errors.clear()
    browser.requests.clear()
    yield browser
    browser.run("decisions.storage?.clear(), decisions.unsaved = false")
    elsewhere = [url for url in browser.requests if not url.startswith(folder.as_uri() + "/")]
    assert browser.errors == [] and elsewhere == []


def open_page(browser: Browser, path: Path) -> None:
    browser.open(path)
    browser.run(READY)


def text(browser: Browser, selector: str) -> str:
    return browser.run(f"document.querySelector('{selector}').innerText")


def rows(browser: Browser) -> list[list]:
    browser.run(FRAME)
    return browser.run(ROWS)


def click(browser: Browser, selector: str) -> None:
    browser.run(f"document.querySelector('{selector}').click()")


def search(browser: Browser, words: str) -> None:
    browser.type("/" + words + "\r")


def decisions(browser: Browser) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(browser.run("decisions.csv()"))))


def selected(browser: Browser) -> int:
    return browser.run("list.row")


# Many pairs.


def test_a_hundred_thousand_pairs_scroll_to_the_last(browser, folder, many):
    open_page(browser, folder / "many.html")
    first = rows(browser)
    assert [place for place, _, _ in first] == list(range(1, len(first) + 1))
    assert first[0][1].split("\n")[1] == HOSTILE[0]
    assert browser.run("document.querySelectorAll('.row').length") < 30
    browser.run("(box => { box.scrollTop = box.scrollHeight; })(document.querySelector('#pairs'))")
    place, shown, whole = rows(browser)[-1]
    assert place == MANY and whole and many.captions[many.findings.order[-1]] in shown
    browser.run("document.querySelector('#pairs').focus()")
    browser.press("End")
    assert selected(browser) == many.findings.order[-1]
    assert browser.errors == [] and browser.requests == []


def test_filters_and_search_of_many(browser, folder, many):
    open_page(browser, folder / "many.html")
    findings = many.findings
    for kind in range(len(KINDS)):
        button = f'#filters [data-filter="{kind}"]'
        count = int((findings.kind == kind).sum())
        assert text(browser, button).endswith(f" {count:,}")
        click(browser, button)
        if count:
            expected = findings.order[findings.kind[findings.order] == kind]
            assert browser.run("list.view.length") == count
            np.testing.assert_array_equal(browser.run("[...list.view.slice(0, 9)]"), expected[:9])
    click(browser, '#filters [data-filter="all"]')
    where = [text.lower() for text in many.captions]
    named = [many.ids[image].lower() for image in findings.image]
    for words in ("man big two", "GRASS the", HOSTILE[1], many.ids[77], "4321"):
        search(browser, words)
        expected = [row for row in findings.order if words.lower() in where[row]
                    or words.lower() in named[row] or words == str(row)]  # fmt: skip
        assert browser.run("[...list.view]") == expected and expected
        browser.run("document.querySelector('#search').value = ''")
    assert browser.errors == [] and browser.requests == []


def test_a_list_taller_than_an_element_can_be_scrolls_to_every_pair(page):
    page.run(f"list.show(new Int32Array(1_000_000), {999_999})")
    assert rows(page)[-1][0] == 1_000_000
    page.run("document.querySelector('#pairs').scrollTop /= 2")
    middle = rows(page)
    assert abs(middle[0][0] - 500_000) < 10
    page.send("Input.dispatchMouseEvent", type="mouseWheel", x=200, y=600, deltaX=0, deltaY=112)
    page.run(FRAME)
    assert rows(page)[0][0] - middle[0][0] == 2  # a wheel moves it as any list
    page.run("document.querySelector('#pairs').scrollTop = 0")
    assert rows(page)[0][0] == 1


# One pair.


def test_a_pair_is_shown_with_its_picture_doubt_and_proposals(page, few):
    findings, row = few.findings, int(few.findings.order[10])
    page.run(f"refresh({row})")
    assert text(page, "#caption") == few.captions[row]
    facts = text(page, ".facts")
    assert f"doubt {findings.posterior[row]:.0%}" in facts and f"row {row}" in facts
    assert few.ids[findings.image[row]] in facts
    proposals = page.run("[...document.querySelectorAll('.proposal')].map(x => x.innerText)")
    assert len(proposals) == TOP + 1
    for n, (key, line) in enumerate(zip(["1", "2", "3", "n"], proposals, strict=True)):
        words, share = "none of these fits", findings.none_fits[row]
        if n < TOP:
            share = findings.probability[row, n]
            words = " ".join(few.captions[findings.proposal[row, n]].split())
        assert line.split("\n")[0] == key and words.replace("\ud83d", "\ufffd") in line
        assert line.endswith(f"{share:.0%}")
    others = page.run("[...document.querySelectorAll('.captions li')].map(x => x.textContent)")
    assert len(others) == 4
    colour = page.run("""(async () => { const image = document.querySelector('.picture img');
        await image.decode(); const canvas = document.createElement('canvas');
        const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);
        return [...context.getImageData(5, 5, 1, 1).data]; })()""")
    image = int(findings.image[row])
    assert colour == [image, 80, 255 - image, 255]


def test_texts_stay_texts(page, few):
    for row, hostile in zip(few.findings.order, HOSTILE, strict=False):
        page.run(f"refresh({row})")
        shown = " ".join(hostile.replace("\ud83d", "\ufffd").split())
        assert page.run("document.querySelector('#caption').textContent") == shown
        assert shown in page.run("document.querySelector('.facts').textContent")
    assert page.run("document.querySelectorAll('main script, main b, main i').length") == 0
    assert text(page, "h1") == "<b>data</b>: 200 pairs"
    assert page.dialogs.count("alert") == 0


def test_pictures_that_are_not_embedded_come_from_their_files(browser, folder, few, page):
    embedded = page.run("[...data.embedded.keys()]")
    images = [image for image in range(39) if image not in embedded]
    row = int(np.flatnonzero(few.findings.image == images[0])[0])
    page.run(f"refresh({row})")
    assert page.run("document.querySelector('.picture img').decode().then(() => "
                    "document.querySelector('.picture img').naturalWidth)") == 60  # fmt: skip
    assert [Path(url).name for url in page.requests] == [f"{images[0]}%20%3Cb%3E.png"]
    page.run(f"refresh({int(np.flatnonzero(few.findings.image == 39)[0])})")
    page.run("new Promise(done => { const wait = () => document.querySelector('.picture img')"
             " ? setTimeout(wait, 10) : done(); wait(); })")  # fmt: skip
    shown = text(page, ".picture")
    assert "cannot be shown" in shown and "39%20%3Cb%3E.png" in shown
    page.errors.clear()  # of the file that is not there


def test_without_photographs_captions_of_near_images_stand_in(page, folder, few):
    open_page(page, folder / "features.html")
    row = int(few.findings.order[0])
    shown = text(page, ".picture")
    assert "no photographs" in shown and "three most similar images" in shown
    near = few.near[few.findings.image[row]]
    firsts = [np.flatnonzero(few.findings.image == image)[0] for image in near]
    listed = page.run("[...document.querySelectorAll('.picture li')].map(x => x.textContent)")
    assert listed == [
        " ".join(few.captions[first].replace("\ud83d", "\ufffd").split()) for first in firsts
    ]


# Decisions.


def test_keys_decide_and_move_on_and_undo_any_number(page, few):
    order = few.findings.order
    page.type("ynu2")
    assert selected(page) == order[4]
    expected = {
        int(order[0]): ("fits", ""),
        int(order[1]): ("wrong", ""),
        int(order[2]): ("unsure", ""),
        int(order[3]): ("wrong", str(few.findings.proposal[order[3], 1])),
    }
    assert [(int(line["row"]), line["decision"], line["caption"], line["door"], line["weight"])
            for line in decisions(page)] == [
        (row, *expected[row], "list", "") for row in sorted(expected)]  # fmt: skip
    marks = [row[1].split("\n")[2:3] for row in rows(page)[:5]]
    assert [mark[0][0] if mark else "" for mark in marks] == ["\u2713", "\u2717", "?", "\u2717", ""]
    page.type("kk")
    assert "You said: unsure" in text(page, ".decision")
    page.type("y")  # another decision in its place; on to the next that is not decided
    assert selected(page) == order[4] and len(decisions(page)) == 4
    page.type("zz")
    assert selected(page) == order[3] and decisions(page)[0]["row"] == str(min(order[:3]))
    assert {line["decision"] for line in decisions(page)} == {"fits", "wrong", "unsure"}
    page.type("zzzz")
    assert decisions(page) == [] and "nothing to undo" in text(page, "#status")
    page.type("jjk")
    assert selected(page) == order[1]


def test_a_key_that_is_held_down_decides_once(page):
    page.type("n")
    for _ in range(3):
        page.send("Input.dispatchKeyEvent", type="keyDown", key="n", text="n", autoRepeat=True)
    assert len(decisions(page)) == 1


def test_decisions_in_another_tab_are_taken_over(page, few):
    page.type("n")
    row = int(few.findings.order[1])
    page.run(f"localStorage.setItem(decisions.prefix + '1', '{row},fits,,list')")
    page.run("dispatchEvent(new StorageEvent('storage', {key: decisions.prefix + '1'}))")
    assert "You said: fits" in text(page, ".decision") and len(decisions(page)) == 2
    page.type("z")
    assert selected(page) == row and len(decisions(page)) == 1


def test_decisions_outlive_a_reload_and_are_asked_for_before_leaving(page, folder, few):
    page.type("ny1")
    before = decisions(page)
    page.dialogs.clear()
    open_page(page, folder / "few.html")
    assert page.dialogs == ["beforeunload"]
    assert decisions(page) == before and len(before) == 3
    assert selected(page) == few.findings.order[3]
    page.type("z")
    assert decisions(page) == [line for line in before if line["row"] != str(selected(page))]
    page.type("d")
    downloaded(folder)
    page.dialogs.clear()
    open_page(page, folder / "few.html")
    assert page.dialogs == []


def downloaded(folder) -> Path:
    """The file of decisions, once the browser has written it; under a name that no other has."""
    file = folder / "downloads" / "decisions.csv"
    for _ in range(600):
        if file.exists() and file.stat().st_size:
            return file.rename(file.with_stem(f"decisions-{time.monotonic_ns()}"))
        time.sleep(0.05)
    raise AssertionError(f"{file} has not come")


def test_the_download_is_the_decisions_as_csv(page, folder, few):
    click(page, "#review-door")
    page.type("nyu")
    click(page, "#list-door")
    page.type("y1d")
    file = downloaded(folder)
    content, read = file.read_bytes().decode(), read_decisions(file, 200)
    assert content == page.run("decisions.csv()")
    header, *lines, last = content.split("\n")
    assert header == "row,decision,caption,door,weight" and len(lines) == 5 and last == ""
    numbers = [int(line.split(",")[0]) for line in lines]
    assert numbers == sorted(numbers) == read.row.tolist()
    check_sample(read, few.review, few.review_weight)
    assert read.is_review.sum() == 3


def test_where_nothing_can_be_kept_it_works_in_memory_and_says_so(page, folder):
    denied = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('denied'); }})"
    script = page.send("Page.addScriptToEvaluateOnNewDocument", source=denied)
    open_page(page, folder / "few.html")
    assert "keeps nothing" in text(page, "#door-note")
    page.type("yn")
    assert len(decisions(page)) == 2
    page.type("z")
    assert len(decisions(page)) == 1
    click(page, "#review-door")
    assert "keeps nothing" in text(page, "#door-note")
    page.send("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


def test_what_another_page_has_stored_is_not_trusted(page, folder, few):
    page.type("yyd")
    page.run("localStorage.setItem(decisions.prefix + '1', '7,<img src=x>,,list')")
    open_page(page, folder / "few.html")
    assert len(decisions(page)) == 1
    outside = next(row for row in range(200) if row not in few.review)
    page.run(f"localStorage.setItem(decisions.prefix + '0', '{outside},fits,,review')")
    open_page(page, folder / "few.html")
    assert [line["door"] for line in decisions(page)] == ["list"]  # no weight is known
    page.run("localStorage.setItem(decisions.prefix + '0', '200,fits,,list')")  # no such row
    open_page(page, folder / "few.html")
    assert decisions(page) == []


# The blind review.


def test_the_review_hides_what_the_audit_says_until_decided(page, few):
    row, second = (int(row) for row in few.review[:2])
    click(page, "#review-door")
    assert selected(page) == row
    assert text(page, "#progress") == f"0 of {len(few.review)} decided"
    whole = page.run("document.querySelector('main').innerText + status.innerText")
    assert "doubt" not in whole and "%" not in whole.replace(few.captions[row], "")
    assert not any(kind.replace("_", " ") in whole for kind in KINDS)
    assert page.run("document.querySelectorAll('.proposal').length") == 0
    assert page.run("document.querySelector('#filters').checkVisibility()") is False
    assert "%" not in page.run("document.querySelector('#announced').textContent")
    page.type("1")  # would take a proposal, which is hidden
    assert decisions(page) == [] and selected(page) == row
    page.type("n")
    assert selected(page) == second
    line = {"row": str(row), "decision": "wrong", "caption": "", "door": "review"}
    assert decisions(page) == [line | {"weight": repr(float(few.review_weight[0]))}]
    page.type("k")
    assert f"doubt {few.findings.posterior[row]:.0%}" in text(page, ".facts")
    click(page, "#list-door")
    assert selected(page) != second  # the list would tell what it says of it


def test_decisions_of_the_review_stay_and_ask_again_what_the_list_has_decided(page, few):
    doubted = next(row for row in few.review.tolist() if few.findings.posterior[row] > 0.5)
    page.run(f"refresh({doubted})")
    page.type("y")
    click(page, "#review-door")
    page.run(f"refresh({doubted})")
    assert page.run("document.querySelector('.decision')") is None
    page.type("n")
    assert [line["door"] for line in decisions(page)] == ["review"]
    click(page, "#list-door")
    page.run(f"refresh({doubted})")
    page.type("y")
    assert "stays" in text(page, "#status")
    assert [line["decision"] for line in decisions(page)] == ["wrong"]
    page.type("2")  # wrong as before, and now which caption fits
    (line,) = decisions(page)
    assert line["caption"] == str(few.findings.proposal[doubted, 1]) and line["door"] == "review"
    page.type("zz")
    assert [line["door"] for line in decisions(page)] == ["list"] and selected(page) == doubted
    assert text(page, "#progress").startswith("0 of")  # undone where it was decided


# For everyone.


def test_keys_of_one_letter_can_be_turned_off_and_buttons_do_the_same(page, few):
    page.type("?")
    assert page.run("document.querySelector('#help').open")
    page.type("y")  # not while the help is open
    click(page, "#letters")
    page.press("Escape")
    page.type("yn1")
    assert decisions(page) == []
    click(page, "#keys [aria-keyshortcuts=n]")
    page.run("document.querySelector('.proposal').focus()")
    click(page, ".proposal")
    assert [line["decision"] for line in decisions(page)] == ["wrong", "wrong"]
    assert page.run("document.activeElement.id") == "pair"  # the focus is not lost
    assert few.captions[selected(page)].split("\n")[0].strip() in text(page, "#announced")


def test_the_list_is_a_listbox_that_arrows_move_in(page, few):
    page.run("document.querySelector('#pairs').focus()")
    for key, place in (
        ("ArrowDown", 2),
        ("ArrowDown", 3),
        ("ArrowUp", 2),
        ("End", 200),
        ("Home", 1),
    ):
        page.press(key)
        page.run(FRAME)
        active = page.run("""(row => [row.getAttribute('aria-selected'), row.ariaPosInSet,
            row.ariaSetSize, row.getAttribute('role')])(document.getElementById(
            document.querySelector('#pairs').getAttribute('aria-activedescendant')))""")
        assert active == ["true", str(place), "200", "option"]
    assert page.run("document.querySelectorAll('[aria-selected=true]').length") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_the_contrast_that_wcag_asks_for(page, few, scheme):
    page.prefer(scheme)
    page.run("document.querySelector('details').open = true")
    page.type("nyunkkk")
    for selector in TEXTS:
        element = f"document.querySelector('{selector}')"
        assert page.run(f"{element} !== null"), selector
        assert page.run(f"{CONTRAST}({element})") >= 4.5, selector
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(21, 23, 26)") is (scheme == "dark")
    page.prefer("light")


def test_a_phone_shows_it_without_scrolling_sideways(page, few):
    page.resize(360, 740, phone=True)
    page.run(f"refresh({int(np.flatnonzero(few.findings.kind == ALTERNATE)[0])})")
    assert page.run("document.documentElement.scrollWidth") == 360
    page.run("document.querySelector('#pairs').scrollIntoView()")
    inside = page.run("[...document.querySelectorAll('#keys button, #caption, .picture img')].map("
                      "x => { const at = x.getBoundingClientRect();"
                      "return at.left >= 0 && at.right <= 360 && at.bottom <= 740; })")  # fmt: skip
    assert all(inside)
    page.resize(1280, 900)
