"""Text of users that a spreadsheet would compute: written as text, and read back as it was."""

import csv

import pytest

from l2rm_jax.data.spreadsheet_cells import original_cell, plain_cell
from l2rm_jax.errors import DataError
from l2rm_jax.importing.rejected import Rejected

FORMULAS = ["=HYPERLINK(A1)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''-1"]


@pytest.mark.parametrize("text", [*FORMULAS, "a dog", "'tis", "", "'", "a = b"])
def test_cells_are_read_as_they_were(text):
    cell = plain_cell(text)
    assert original_cell(cell) == text
    assert (cell != text) == (text in FORMULAS) and not cell.startswith(tuple("=+-@\t\r\n"))


def test_formulas_in_the_list_of_rejected_rows(tmp_path):
    rejected = Rejected(tmp_path, most=0.0)
    names = [name for name in FORMULAS if "\r" not in name]
    for row, name in enumerate(names, 1):
        rejected.add(row, name, f"no file: {name}")
    with pytest.raises(DataError):
        rejected.check(1)
    with (tmp_path / "rejected.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [original_cell(row["image"]) for row in rows] == names
    assert not any(row["image"].startswith(tuple("=+-@\t\r\n")) for row in rows)
