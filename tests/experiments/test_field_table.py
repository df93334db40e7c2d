"""The list of config fields in configs/README.md is made from l2rm_jax/config."""

import pytest

from experiments.pages import field_table
from l2rm_jax.config.field import Field
from l2rm_jax.errors import DataError


def test_page_is_up_to_date():
    field_table.main(["--check"])


def test_meanings_are_escaped():
    fields = {"seed": Field(0, "`a_b`, <x> of a|b from _x")}
    listed = field_table.markdown(fields, {"": ""})
    assert "- `seed = 0`: `a_b`, \\<x> of a|b from \\_x\n" in listed


def test_check_fails_where_the_page_differs(tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    page.write_text(field_table.PAGE.read_text().replace("`train.epochs =", "`train.epoch ="))
    monkeypatch.setattr(field_table, "PAGE", page)
    with pytest.raises(SystemExit, match="out of date"):
        field_table.main(["--check"])
    field_table.main([])
    assert page.read_text() == (field_table.ROOT / "configs" / "README.md").read_text()


@pytest.mark.parametrize("page", ["", "<!-- fields -->", "<!-- end fields -->\n<!-- fields -->\n"])
def test_page_without_marks_is_refused(page):
    with pytest.raises(DataError, match="expected the line <!-- fields --> once"):
        field_table.updated(page, "table")
