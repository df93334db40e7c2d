"""The table of config fields in configs/README.md is made from l2rm_jax/config.py."""

import ast

import pytest

from experiments import field_table
from l2rm_jax.config import default, flat
from l2rm_jax.errors import DataError

SOURCE = '''
def default():
    """A config."""
    config = ConfigDict()
    config.seed = 0  # number of `a_b`, <x>

    # What a run
    # trains.
    config.train = train = ConfigDict()
    # Not of epochs.

    # One of
    # a|b.
    train.kind = (
        "a"  # or b
    )
    train.epochs = 3  # from _x
    config.own = ConfigDict(import_plugins(config.plugins))  # of plug-ins
    config.plugins = tuple(plugins)  # modules
    return config.lock()
'''


def test_page_is_up_to_date():
    field_table.main(["--check"])


def test_every_field_is_in_the_table():
    page = field_table.PAGE.read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    names = [row.split("`")[1] for row in rows]
    assert [name for name in flat(default()) if names.count(name) != 1] == []


def test_defaults_are_those_of_the_config():
    values = flat(default())
    _, fields = field_table.read_fields(field_table.SOURCE.read_text())
    assert {row.name: ast.literal_eval(row.default) for row in fields} == values


def test_comments_at_the_end_of_a_line_and_above_it():
    about, fields = field_table.read_fields(SOURCE)
    assert about == {"": "", "train": "What a run trains.", "own": "of plug-ins"}
    assert fields == [
        ("", "seed", "0", "number of `a_b`, <x>"),
        ("train", "train.kind", '"a"', "One of a|b. or b"),
        ("train", "train.epochs", "3", "from _x"),
        ("", "plugins", "()", "modules"),
    ]


def test_cells_are_escaped():
    table = field_table.markdown(SOURCE)
    assert "| `seed` | `0` | number of `a_b`, \\<x> |" in table
    assert "One of a\\|b. or b |" in table and "from \\_x |" in table


def test_check_fails_where_the_page_differs(tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    page.write_text(field_table.PAGE.read_text().replace("| `train.epochs`", "| `train.epoch`"))
    monkeypatch.setattr(field_table, "PAGE", page)
    with pytest.raises(SystemExit, match="out of date"):
        field_table.main(["--check"])
    field_table.main([])
    assert page.read_text() == (field_table.ROOT / "configs" / "README.md").read_text()


@pytest.mark.parametrize("page", ["", "<!-- fields -->", "<!-- end fields -->\n<!-- fields -->\n"])
def test_page_without_marks_is_refused(page):
    with pytest.raises(DataError, match="expected the line <!-- fields --> once"):
        field_table.updated(page, "table")
