"""The table and the figure for a reader in a hurry."""

import pytest

from experiments.benchmark import plot_methods
from experiments.benchmark.overview import (
    LINES,
    PUBLISHED,
    RATES,
    best_published,
    overview_table,
)


def make_records(better="decl", rates=("0.0", *RATES)):
    """Two seeds of every row; `better` leads on validation, another method on the test."""
    rows = dict.fromkeys(row for rows in LINES.values() for row in rows) | {"recipe truth": None}
    return [
        {
            "row": row, "head": "vse", "protocol": "image", "rate_asked": rate, "seed": str(seed),
            "networks": "1", "split": "",
            "dev_rsum": str(200 + 9 * (row == better) + seed),
            "test_rsum": str(100 + 7 * (row == "sps") + 5 * (row == "recipe linear") + 2 * seed),
        }
        for row in rows for rate in rates for seed in (0, 1)
    ]  # fmt: skip


def test_every_method_has_a_line_without_an_empty_cell():
    table = overview_table(make_records(), "image")
    assert [row[0].text for row in table.rows] == list(LINES)
    lines = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert lines["sps"] == ["1", "108 ±1", "101 ±1", "108 ±1", "101 ±1"]
    kinds = {row[0].text: [cell.kind for cell in row[2:6]] for row in table.rows}
    assert kinds["sps"] == ["best", "", "best", ""] and kinds["recipe"] == ["", "best", "", "best"]


@pytest.mark.parametrize("row", ["sps", "recipe linear", "cca weighted"])
def test_a_table_with_a_hole_is_not_shown(row):
    records = [each for each in make_records() if (each["row"], each["rate_asked"]) != (row, "0.8")]
    assert overview_table(make_records(), "caption") is None
    assert overview_table(records, "image") is None


def test_the_figure_chooses_by_validation():
    records = make_records()
    assert best_published(records) == "decl"
    assert best_published(make_records(better="cca")) == PUBLISHED[0]
    assert len(plot_methods.plot(records).axes) == 1
