"""Pages in Debian's Chromium, driven by Playwright; and the page of an audit."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from l2rm_jax.pages.gallery import Gallery, write_gallery
from tests.pages.galleries import make_gallery, write_picture
from tests.pages.gallery_page import open_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {
    "viewport": {"width": 360, "height": 740},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


@dataclass
class Events:
    """Events in a tab.

    Attributes:
      errors: messages of the console that are errors or warnings, and exceptions of scripts.
      requests: addresses that pages asked for, without their own and data URIs.
      dialogs: types of the dialogs that pages opened ("alert", "beforeunload"); all are accepted.
    """

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def note_message(self, message) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def note_request(self, request) -> None:
        if not (request.is_navigation_request() or request.url.startswith("data:")):
            self.requests.append(request.url)

    def accept_dialog(self, dialog) -> None:
        self.dialogs.append(dialog.type)
        dialog.accept()


# Of a module, not of the session: while Playwright runs, nothing else can use asyncio.
@pytest.fixture(scope="module")
def chromium():
    reason = "the extra `browser` is not installed"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on the path")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture
def events() -> Events:
    return Events()


@contextmanager
def opened_tab(chromium, events: Events, settings: dict) -> Iterator:
    """A tab without stored data, in which no script may fail."""
    context = chromium.new_context(**settings)
    tab = context.new_page()
    tab.on("console", events.note_message)
    tab.on("pageerror", lambda error: events.errors.append(str(error)))
    tab.on("request", events.note_request)
    tab.on("dialog", events.accept_dialog)
    yield tab
    context.close()
    assert events.errors == []


@pytest.fixture
def tab(chromium, events):
    with opened_tab(chromium, events, DESKTOP) as tab:
        yield tab


@pytest.fixture
def phone(chromium, events):
    with opened_tab(chromium, events, PHONE) as tab:
        yield tab


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
    review = gallery.review[gallery.judgement.image_of[gallery.review] < 20]
    gallery = gallery._replace(review=review, review_weight=gallery.review_weight[: len(review)])
    write_gallery(folder / "few.html", gallery)
    write_gallery(folder / "features.html", gallery._replace(pictures=None, key="features"))
    return gallery


@pytest.fixture
def page(tab, events, folder, few):
    """The page of 200 pairs, newly opened and without decisions."""
    open_page(tab, folder / "few.html")
    yield tab
    assert [url for url in events.requests if not url.startswith(folder.as_uri() + "/")] == []
