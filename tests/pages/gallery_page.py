"""Helpers that operate and read the page of an audit in a browser."""

import csv
import io
from pathlib import Path

from tests.browser import Browser

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
