"""The tables in the pages are the CSV files of experiments/results."""

import pytest

from experiments.pages import results_page
from l2rm_jax.errors import DataError

CSVS = sorted((results_page.EXPERIMENTS / "results").glob("*.csv"))
PAGE = "before\n<!-- table: results/a.csv -->\nold\n<!-- end table -->\nafter\n"
TABLE = "\n".join(
    [
        "| head | rSum, test | plan |",
        "| --- | --: | --: |",
        r"| a\|b | 1.5 | - |",
        "| saf |  | 1e-05 |",
    ]
)


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(results_page, "EXPERIMENTS", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.csv").write_text('head,"rSum, test",plan\na|b,1.5,-\nsaf,,1e-05\n')
    path = tmp_path / "RESULTS.md"
    path.write_text(PAGE)
    return path


@pytest.mark.parametrize("path", CSVS, ids=lambda path: path.stem)
def test_every_csv_is_a_table(path):
    assert results_page.markdown(path).startswith("| ")


def test_block_is_replaced(page):
    results_page.main([str(page)])
    assert page.read_text() == PAGE.replace("\nold\n", f"\n\n{TABLE}\n\n")
    results_page.main([str(page), "--check"])


def test_columns_are_left_out(page):
    page.write_text(PAGE.replace("a.csv", "a.csv; without plan"))
    results_page.main([str(page)])
    assert "| head | rSum, test |\n| --- | --: |\n| a\\|b | 1.5 |\n| saf |  |\n" in page.read_text()
    page.write_text(PAGE.replace("a.csv", "a.csv; without plans"))
    with pytest.raises(DataError, match="found plans, expected of"):
        results_page.main([str(page)])


def test_check_names_the_page_and_writes_nothing(page):
    with pytest.raises(SystemExit, match=r"out of date: .*RESULTS\.md") as exit_:
        results_page.main([str(page), "--check"])
    assert isinstance(exit_.value.code, str)  # status 1
    assert page.read_text() == PAGE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PAGE.replace("<!-- end table -->\n", ""), "found 0 such pairs among 1 and 0 marks"),
        (PAGE + "<!-- end table -->\n", "found 1 such pairs among 1 and 2 marks"),
        (PAGE.replace("old", "<!-- table: results/a.csv -->"), "1 such pairs among 2 and 1 marks"),
        (PAGE.replace("a.csv", "b.csv"), r"b\.csv: no such file"),
    ],
)
def test_wrong_marks_are_refused(page, text, message):
    page.write_text(text)
    with pytest.raises(DataError, match=message):
        results_page.main([str(page)])
    assert page.read_text() == text


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "empty, expected a row of column names"), ("a,b\n1\n", "row 2 has 1 cells, expected 2")],
)
def test_wrong_csv_is_refused(page, text, message):
    (page.parent / "results" / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        results_page.main([str(page)])
