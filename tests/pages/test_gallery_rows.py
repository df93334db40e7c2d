"""Pages of many pairs hold only the most suspicious pairs and the review, renumbered."""

import numpy as np
import pytest

from l2rm_jax.pages import gallery
from l2rm_jax.pages.gallery import listed, rows_needed, taken, write_gallery
from tests.pages.galleries import make_gallery
from tests.pages.gallery_page import click, decisions, open_page, text

MOST = 12


@pytest.fixture(scope="module")
def of():
    return make_gallery(300)


def test_what_is_shown_is_what_stands_in_the_data(of):
    whole = of.judgement
    some = listed(whole, of.review, MOST)
    rows = rows_needed(some)
    images = np.unique(whole.image_of[rows])
    found = taken(some, rows, images)
    assert set(rows[found.order]) == set(whole.order[:MOST]) | set(of.review)
    np.testing.assert_array_equal(rows[found.order], some.order)
    np.testing.assert_array_equal(images[found.image_of], whole.image_of[rows])
    for name in ("posterior", "witness"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name)[rows])
    for at in found.order:
        row = rows[at]
        assert (rows[found.proposal[at]] == whole.proposal[row]).all() or found.proposal[at, 0] < 0
        assert (found.proposal[at] < 0).all() == (whole.proposal[row] < 0).all()
        np.testing.assert_array_equal(
            images[found.nearest_images[found.image_of[at]]],
            whole.nearest_images[whole.image_of[row]],
        )
        siblings = np.flatnonzero(whole.image_of == whole.image_of[row])
        assert set(siblings) <= set(rows)


@pytest.mark.slow
def test_rows_of_the_data_are_shown_and_decided(tab, folder, monkeypatch):
    monkeypatch.setattr(gallery, "LISTED", MOST)
    of = make_gallery(300)
    of = of._replace(review=of.review[:5], review_weight=of.review_weight[:5], key="listed")
    write_gallery(folder / "listed.html", of)
    open_page(tab, folder / "listed.html")
    order = listed(of.judgement, of.review, MOST).order
    assert f"{len(order)} of 300 pairs" in text(tab, "#door-note")
    assert f"row {order[0]}" in text(tab, ".facts")
    tab.keyboard.type("n1")
    click(tab, "#review-door")
    tab.keyboard.type("y")
    kept = decisions(tab)
    open_page(tab, folder / "listed.html")  # the browser kept them by rows of the data
    assert decisions(tab) == kept
    expected = {
        (str(order[0]), "wrong", "", "list"),
        (str(order[1]), "wrong", str(of.judgement.proposal[order[1], 0]), "list"),
        (str(of.review[0]), "fits", "", "review"),
    }
    names = ("row", "decision", "caption", "door")
    assert {tuple(line[name] for name in names) for line in kept} == expected
