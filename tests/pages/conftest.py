"""The page of an audit in a browser, for the tests of the page."""

from pathlib import Path

import pytest

from l2rm_jax.pages.gallery import Gallery, write_gallery
from tests.browser import Browser
from tests.pages.galleries import make_gallery, write_picture
from tests.pages.gallery_page import open_page


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
    review = gallery.review[gallery.judgement.image[gallery.review] < 20]
    gallery = gallery._replace(review=review, review_weight=gallery.review_weight[: len(review)])
    write_gallery(folder / "few.html", gallery)
    write_gallery(folder / "features.html", gallery._replace(pictures=None, key="features"))
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
