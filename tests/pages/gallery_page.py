"""Use and read the page of an audit in a browser."""

import csv
import io
from pathlib import Path

FRAME = "new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))"
# Rows of the list that are in view, from the top: place in the list, and the text.
ROWS = """(() => { const box = document.querySelector('#pairs').getBoundingClientRect();
    return [...document.querySelectorAll('.row')].filter(row => row.checkVisibility())
        .map(row => [row.getBoundingClientRect(), row])
        .filter(([at]) => at.bottom > box.top + 1 && at.top < box.bottom - 1)
        .sort(([a], [b]) => a.top - b.top)
        .map(([at, row]) => [Number(row.ariaPosInSet), row.innerText, at.bottom <= box.bottom + 1]);
    })()"""


def open_page(tab, path: Path, door: str = "list") -> None:
    """Open a page and one of its views; "": the one with which it opens."""
    tab.goto(path.as_uri())
    tab.wait_for_selector("main:not([aria-busy])")
    if door:
        click(tab, f"#{door}-door")


def text(tab, selector: str) -> str:
    return tab.inner_text(selector)


def rows(tab) -> list[list]:
    tab.evaluate(FRAME)
    return tab.evaluate(ROWS)


def click(tab, selector: str) -> None:
    tab.evaluate(f"document.querySelector('{selector}').click()")


def search(tab, words: str) -> None:
    tab.keyboard.type("/" + words + "\r")


def decisions(tab) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(tab.evaluate("decisions.csv()"))))


def selected(tab) -> int:
    return tab.evaluate("list.row")
