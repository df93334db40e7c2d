"""The table of pairs as a file: text survives, unknown cells are empty."""

import csv

import numpy as np
import pytest

from l2rm_jax.audit.table import Column, read_table, write_table
from l2rm_jax.data.spreadsheet_cells import original_cell
from l2rm_jax.errors import ConfigError
from l2rm_jax.jobs.files import new_file

TEXTS = [
    "\ufeffa \"quoted\" dog, 'and' more",
    "two\nlines\r\nand a lone \r return",
    "tab\tand ünïcode 犬 🐕",
    "=1+1;",
    " spaces ",
    'only "',
]
COLUMNS = {
    "row": Column(np.arange(6), np.ones(6, bool)),
    "caption": Column(np.array(TEXTS, object), np.ones(6, bool)),
    "loss": Column(np.linspace(0, 1 / 3, 6, dtype=np.float32), np.arange(6) != 2),
    "wrong": Column(np.arange(6) % 2 == 0, np.arange(6) > 0),
    "fold": Column(np.arange(6) - 1, np.arange(6) > 3),
}


def test_text_survives_a_round_trip_through_csv(tmp_path):
    write_table(tmp_path / "a.csv", COLUMNS)
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    cells = [row["caption"] for row in rows]
    assert [*map(original_cell, cells)] == TEXTS
    assert not any(cell.startswith(tuple("=+-@\t")) for cell in cells)
    assert [row["wrong"] for row in rows] == ["", "false", "true", "false", "true", "false"]
    assert [row["fold"] for row in rows] == ["", "", "", "", "3", "4"]
    assert [row["loss"] for row in rows] == ["0", "0.0666667", "", "0.2", "0.266667", "0.333333"]


def test_a_long_caption_is_read_again(tmp_path):
    texts = np.array(["a" * 200_000, TEXTS[0]], object)
    columns = {"row": Column(np.arange(2), np.ones(2, bool)), "caption": Column(texts, texts != "")}
    write_table(tmp_path / "pairs.csv", columns)
    assert read_table(tmp_path, 2)["caption"].tolist() == texts.tolist()


def test_parquet_has_types_and_nulls(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_table(tmp_path / "a.parquet", COLUMNS)
    rows = parquet.read_table(tmp_path / "a.parquet").to_pydict()
    assert rows["caption"] == TEXTS and rows["row"] == list(range(6))
    assert rows["wrong"] == [None, False, True, False, True, False]
    assert rows["fold"] == [None] * 4 + [3, 4] and rows["loss"][2] is None
    assert rows["loss"][5] == pytest.approx(1 / 3)


def test_a_new_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "a.csv"
    with pytest.raises(KeyError), new_file(path) as unfinished:
        unfinished.write_text("half")
        raise KeyError
    assert not list(tmp_path.iterdir())
    with new_file(path) as unfinished:
        unfinished.write_text("whole")
        assert not path.exists()
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"] and path.read_text() == "whole"
    with pytest.raises(ConfigError, match=r"a.csv"), new_file(path):
        raise AssertionError
    other = tmp_path / "b.csv"
    with pytest.raises(ConfigError, match=r"b.csv"), new_file(other):
        other.write_text("of somebody else")  # meanwhile
    assert other.read_text() == "of somebody else" and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(FileNotFoundError), new_file(tmp_path / "missing" / "a.csv"):
        raise AssertionError
