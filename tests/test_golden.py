"""This code against the authors' golden arrays.

The environment variable `L2RM_GOLDEN` names another directory of the same layout, and
`FIDELITY_CSV` a file to which rows of the largest errors are added, without a header.
"""

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from tests.golden.fidelity import parts
from tests.golden.fidelity.arrays import GOLDEN
from tests.golden.fidelity.parts import PARTS, compare, kind_of

TABLE = Path(__file__).parents[1] / "experiments" / "results" / "fidelity.csv"
PATHS = sorted(path for path in GOLDEN.iterdir() if path.is_file() and path.suffix != ".md")
FILES = [path for path in PATHS if path.suffix == ".npz" and kind_of(path)]
COLUMNS = ("file", "quantity", "largest error", "tolerance")
# Parts of the names of files that take about five seconds or more: training steps, and some heads.
SLOW = (
    *("step", "train", "chan", "naaf", "v_de", "h_omit", "i_rcsl"),
    *("bc_sim", "c2_noisy", "partial_ot", "o_decl", "p_bicro", "z_ncu"),
)


def marked(path, *values):
    is_slow = any(word in path.stem for word in SLOW)
    name = "-".join((path.stem, *values))
    return pytest.param(path, *values, id=name, marks=pytest.mark.slow if is_slow else ())


QUANTITIES = [marked(path, name) for path in FILES for name in PARTS[kind_of(path)].tolerance]


@pytest.mark.parametrize(("path", "quantity"), QUANTITIES)
def test_agrees_with_the_authors(path, quantity):
    errors = compare(path).errors
    if quantity not in errors:
        pytest.skip(f"{path.name} holds no array for it")
    assert errors[quantity] <= PARTS[kind_of(path)].tolerance[quantity]


@pytest.mark.parametrize("path", [marked(path) for path in FILES])
def test_every_array_is_read(path):
    assert parts.unread(compare(path)) == []


def test_every_file_is_compared():
    assert PATHS == FILES and {kind_of(path) for path in FILES} == set(PARTS)


@pytest.mark.parametrize("path", [marked(path) for path in FILES])
def test_the_table_of_the_page_has_its_quantities(path):
    """Compare with the stored table, but for the errors, which depend on the processor."""
    rows = [
        (path.stem, quantity, f"{compare(path).errors[quantity]:.1e}", f"{tolerance:.0e}")
        for quantity, tolerance in PARTS[kind_of(path)].tolerance.items()
        if quantity in compare(path).errors
    ]
    if "FIDELITY_CSV" in os.environ:
        with open(os.environ["FIDELITY_CSV"], "a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
    if os.environ.get("L2RM_GOLDEN"):
        return
    found = [(a, b, d) for a, b, _, d in read_table() if a == path.stem]
    assert found == [(a, b, d) for a, b, _, d in rows]


def test_the_table_of_the_page_has_every_file_and_every_tolerance():
    rows = read_table()
    assert list(dict.fromkeys(row[0] for row in rows)) == [path.stem for path in FILES]
    compared = {(kind_of(Path(f"{row[0]}.npz")), row[1]) for row in rows}
    assert compared == {(kind, name) for kind, part in PARTS.items() for name in part.tolerance}


def read_table() -> list[list[str]]:
    with TABLE.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == COLUMNS
    return rows


def changed(tmp_path, **arrays):
    """Compare a file of which some arrays are others."""
    with np.load(GOLDEN / "j_metrics.npz") as stored:
        np.savez(tmp_path / "j_metrics.npz", **{**stored, **arrays})
    return compare(tmp_path / "j_metrics.npz")


def test_array_that_nothing_reads_is_named(tmp_path):
    assert parts.unread(changed(tmp_path, **{"per1/new": np.zeros(3)})) == ["per1/new"]


@pytest.mark.parametrize("wrong", [1.0, np.nan])
def test_error_is_outside_the_tolerance(tmp_path, wrong):
    errors = changed(tmp_path, **{"per5/t2i": np.full(5, wrong)}).errors
    assert not errors["recalls and ranks"] <= 1.0 and errors["ranks that differ"] == 0
