"""Decisions on the page of an audit in a browser: keys, undo, downloads, the blind review."""

import numpy as np
import pytest

from l2rm_jax.audit.review import (
    Decisions,
    check_sample,
    draw_review,
    read_decisions,
    reviewed_rate,
)
from l2rm_jax.errors import DataError
from l2rm_jax.judging.judgement import KINDS
from l2rm_jax.pages.gallery import write_gallery
from tests.pages.gallery_page import click, decisions, open_page, rows, selected, text

pytestmark = pytest.mark.slow


# Decisions.


def test_keys_decide_and_move_on_and_undo_any_number(page, few):
    order = few.judgement.order
    page.keyboard.type("ynu2")
    assert selected(page) == order[4]
    expected = {
        int(order[0]): ("fits", ""),
        int(order[1]): ("wrong", ""),
        int(order[2]): ("unsure", ""),
        int(order[3]): ("wrong", str(few.judgement.proposal[order[3], 1])),
    }
    assert [(int(line["row"]), line["decision"], line["caption"], line["door"], line["weight"])
            for line in decisions(page)] == [
        (row, *expected[row], "list", "") for row in sorted(expected)]  # fmt: skip
    marks = [row[1].split("\n")[2:3] for row in rows(page)[:5]]
    assert [mark[0][0] if mark else "" for mark in marks] == ["\u2713", "\u2717", "?", "\u2717", ""]
    page.keyboard.type("kk")
    assert "You said: unsure" in text(page, ".decision")
    page.keyboard.type("y")  # replaces the decision and moves to the next undecided pair
    assert selected(page) == order[4] and len(decisions(page)) == 4
    page.keyboard.type("zz")
    assert selected(page) == order[3] and decisions(page)[0]["row"] == str(min(order[:3]))
    assert {line["decision"] for line in decisions(page)} == {"fits", "wrong", "unsure"}
    page.keyboard.type("zzzz")
    assert decisions(page) == [] and "nothing to undo" in text(page, "#status")
    page.keyboard.type("jjk")
    assert selected(page) == order[1]


def test_a_key_that_is_held_down_decides_once(page):
    for _ in range(4):
        page.keyboard.down("n")
    assert len(decisions(page)) == 1


def test_decisions_in_another_tab_are_taken_over(page, few):
    page.keyboard.type("n")
    row = int(few.judgement.order[1])
    page.evaluate(f"localStorage.setItem(decisions.prefix + '1', '{row},fits,,list')")
    page.evaluate("dispatchEvent(new StorageEvent('storage', {key: decisions.prefix + '1'}))")
    assert "You said: fits" in text(page, ".decision") and len(decisions(page)) == 2
    page.keyboard.type("z")
    assert selected(page) == row and len(decisions(page)) == 1


def test_decisions_outlive_a_reload_and_are_asked_for_before_leaving(page, events, folder, few):
    page.keyboard.type("ny1")
    before = decisions(page)
    events.dialogs.clear()
    open_page(page, folder / "few.html")
    assert events.dialogs == ["beforeunload"]
    assert decisions(page) == before and len(before) == 3
    assert selected(page) == few.judgement.order[3]
    page.keyboard.type("z")
    assert decisions(page) == [line for line in before if line["row"] != str(selected(page))]
    with page.expect_download():
        page.keyboard.type("d")
    events.dialogs.clear()
    open_page(page, folder / "few.html")
    assert events.dialogs == []


def test_the_download_is_the_decisions_as_csv(page, few):
    click(page, "#review-door")
    page.keyboard.type("nyu")
    click(page, "#list-door")
    page.keyboard.type("y1")
    with page.expect_download() as download:
        page.keyboard.type("d")
    file = download.value.path()
    content, read = file.read_bytes().decode(), read_decisions(file, 200)
    assert content == page.evaluate("decisions.csv()")
    header, *lines, last = content.split("\n")
    assert header == "row,decision,caption,door,weight,pairs" and len(lines) == 5 and last == ""
    assert all(line.endswith(f",{few.pairs}") for line in lines)
    with pytest.raises(DataError, match="pairs texts:0123, expected the pairs texts:4567"):
        read_decisions(file, 200, "texts:4567")
    numbers = [int(line.split(",")[0]) for line in lines]
    assert numbers == sorted(numbers) == read.row.tolist()
    check_sample(read, few.review, few.review_weight)
    assert read.is_review.sum() == 3


def test_where_nothing_can_be_kept_it_works_in_memory_and_says_so(page, folder):
    denied = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('denied'); }})"
    page.add_init_script(denied)
    open_page(page, folder / "few.html")
    assert "does not store" in text(page, "#door-note")
    page.keyboard.type("yn")
    assert len(decisions(page)) == 2
    page.keyboard.type("z")
    assert len(decisions(page)) == 1
    click(page, "#review-door")
    assert "does not store" in text(page, "#door-note")


def reload(page) -> None:
    """Open the page again in the same process; a new one may not see stored values yet."""
    page.reload()
    page.wait_for_selector("main:not([aria-busy])")


def test_what_another_page_has_stored_is_not_trusted(page, few):
    page.keyboard.type("yy")
    with page.expect_download():
        page.keyboard.type("d")
    page.evaluate("localStorage.setItem(decisions.prefix + '1', '7,<img src=x>,,list')")
    reload(page)
    assert len(decisions(page)) == 1
    outside = next(row for row in range(200) if row not in few.review)
    page.evaluate(f"localStorage.setItem(decisions.prefix + '0', '{outside},fits,,review')")
    reload(page)
    assert [line["door"] for line in decisions(page)] == ["list"]  # no weight is known
    page.evaluate("localStorage.setItem(decisions.prefix + '0', '200,fits,,list')")  # no such row
    reload(page)
    assert decisions(page) == []


# The blind review.


def test_the_review_hides_what_the_audit_says_until_decided(page, few):
    row, second = (int(row) for row in few.review[:2])
    click(page, "#review-door")
    assert selected(page) == row
    assert text(page, "#progress") == f"0 of {len(few.review)} decided"
    whole = page.evaluate("document.querySelector('main').innerText + status.innerText")
    assert "suspicion" not in whole and "%" not in whole.replace(few.captions[row], "")
    assert not any(kind.replace("_", " ") in whole for kind in KINDS)
    assert page.evaluate("document.querySelectorAll('.proposal').length") == 0
    assert page.evaluate("document.querySelector('#filters').checkVisibility()") is False
    for part in ".verdict", "details":
        assert page.evaluate(f"document.querySelector('{part}').checkVisibility()") is False
    assert "%" not in page.evaluate("document.querySelector('#announced').textContent")
    page.keyboard.type("1")  # would take a proposal, which is hidden
    assert decisions(page) == [] and selected(page) == row
    page.keyboard.type("n")
    assert selected(page) == second
    line = {"row": str(row), "decision": "wrong", "caption": "", "door": "review"}
    assert decisions(page) == [
        line | {"weight": repr(float(few.review_weight[0])), "pairs": few.pairs}
    ]
    page.keyboard.type("k")
    assert f"suspicion {few.judgement.posterior[row]:.0%}" in text(page, ".facts")
    click(page, "#list-door")
    assert selected(page) != second  # the list would reveal its results


def test_the_rate_is_hidden_until_the_whole_review_is_decided(page, few):
    def shown():
        return page.evaluate("document.querySelector('.verdict').checkVisibility()")

    assert shown()
    click(page, "#review-door")
    page.keyboard.type("y" * (len(few.review) - 1))
    assert not shown()
    page.keyboard.type("u")
    assert shown()
    page.keyboard.type("z")
    assert not shown()


def test_decisions_of_the_review_stay_and_ask_again_what_the_list_has_decided(page, few):
    suspicious = next(row for row in few.review.tolist() if few.judgement.posterior[row] > 0.5)
    page.evaluate(f"refresh({suspicious})")
    page.keyboard.type("y")
    click(page, "#review-door")
    page.evaluate(f"refresh({suspicious})")
    assert page.evaluate("document.querySelector('.decision')") is None
    page.keyboard.type("n")
    assert [line["door"] for line in decisions(page)] == ["review"]
    click(page, "#list-door")
    page.evaluate(f"refresh({suspicious})")
    page.keyboard.type("y")
    assert "cannot be changed" in text(page, "#status")
    assert [line["decision"] for line in decisions(page)] == ["wrong"]
    page.keyboard.type("2")  # wrong as before, and now which caption fits
    (line,) = decisions(page)
    assert (
        line["caption"] == str(few.judgement.proposal[suspicious, 1]) and line["door"] == "review"
    )
    page.keyboard.type("zz")
    assert [line["door"] for line in decisions(page)] == ["list"] and selected(page) == suspicious
    assert text(page, "#progress").startswith("0 of")  # undone where it was decided


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_the_review_ends_with_its_rate_and_the_next_command(tab, folder, few, share):
    rows, weight = draw_review(few.judgement.posterior, 40, seed=1)
    changes = {"review": rows, "review_weight": weight, "key": f"rate {share}", "pictures": None}
    write_gallery(folder / f"rate-{share}.html", few._replace(**changes, command="l2rm audit <i>"))
    open_page(tab, folder / f"rate-{share}.html", door="")
    assert tab.get_attribute("#review-door", "aria-pressed") == "true"  # as the help advises
    rng = np.random.default_rng(3)
    words = np.where(rng.random(40) < share, "n", "y")
    words[::7] = "u"
    tab.keyboard.type("".join(words[:-1]))
    assert not tab.is_visible("#by-eye")
    tab.keyboard.type(words[-1])
    named = {"y": "fits", "n": "wrong", "u": "unsure"}
    decided = np.array([named[word] for word in words], object)
    door = np.full(40, "review")
    rate = reviewed_rate(Decisions(rows, decided, np.full(40, -1), door, weight), rows, weight)
    found = tab.evaluate("decisions.rate()")
    for name in ("estimate", "low", "high", "pairs"):
        assert found[name] == pytest.approx(getattr(rate, name), abs=1e-12), name
    shown = text(tab, "#by-eye")
    assert "l2rm audit <i>" in shown and f"{100 * rate.low:.1f}-{100 * rate.high:.1f}%" in shown
    assert f"{np.count_nonzero(words == 'n')} of {rate.pairs} " in shown


def test_a_page_holds_the_decisions_after_which_it_was_written(tab, folder, few):
    first, second, listed = *few.review[:2].tolist(), int(few.judgement.order[0])
    decided = [(first, "fits", -1, "model 2.1"), (listed, "wrong", 5, "list")]
    changes = {"decided": decided, "key": "decided", "goal": "Requires <b>90</b> decisions."}
    write_gallery(folder / "decided.html", few._replace(**changes))
    open_page(tab, folder / "decided.html", door="")
    assert "Requires <b>90</b> decisions." in text(tab, "#door-note")
    assert text(tab, "#progress").startswith("1 of ")
    assert {line["door"] for line in decisions(tab)} == {"model 2.1", "list"}
    assert selected(tab) == second  # the first that is not decided
    assert {int(line["row"]): (line["decision"], line["caption"]) for line in decisions(tab)} == {
        first: ("fits", ""), listed: ("wrong", "5"),
    }  # fmt: skip
    tab.keyboard.type("nzz")  # also a decision of the page itself can be taken back
    before = decisions(tab)
    assert [int(line["row"]) for line in before] == [first]
    open_page(tab, folder / "decided.html", door="")
    assert decisions(tab) == before


def test_pairs_have_the_numbers_of_the_users_file(tab, folder, few):
    lines = 1000 + 3 * np.arange(200)
    changes = {"word": "line", "lines": lines, "key": "lines"}
    write_gallery(folder / "lines.html", few._replace(**changes))
    open_page(tab, folder / "lines.html")
    row = int(few.judgement.order[0])
    assert f"line {lines[row]}" in text(tab, ".facts")
    tab.keyboard.type("n")
    assert f"line {lines[row]}" in text(tab, "#status")
    assert decisions(tab)[0]["row"] == str(row)
    tab.keyboard.type(f"/{lines[77]}\r")
    assert selected(tab) == 77
