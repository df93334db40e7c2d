"""This code against the authors' golden arrays: asserts what `tests.golden.fidelity` prints.

The environment variable `L2RM_GOLDEN` names another directory of the same layout.
"""

import shutil

import numpy as np
import pytest

from tests.golden.fidelity import comparing, parts
from tests.golden.fidelity.__main__ import GOLDEN, main
from tests.golden.fidelity.arrays import Arrays, difference

FILES = comparing.compared_files(GOLDEN)
# Parts of the names of files that take about five seconds or more: training steps, and some heads.
SLOW = (
    "step",
    "train",
    "chan",
    "naaf",
    "v_de",
    "h_omit",
    "i_rcsl",
    "bc_sim",
    "c2_noisy",
    "partial_ot",
    "o_decl",
    "p_bicro",
)


def marked(path, *values):
    is_slow = any(word in path.stem for word in SLOW)
    name = "-".join((path.stem, *values))
    return pytest.param(path, *values, id=name, marks=pytest.mark.slow if is_slow else ())


QUANTITIES = [marked(path, name) for path in FILES for name in comparing.part_of(path).tolerance]


@pytest.mark.parametrize(("path", "quantity"), QUANTITIES)
def test_agrees_with_the_authors(path, quantity):
    found = comparing.compare(path)
    if quantity not in found.errors:
        pytest.skip(f"{path.name} holds no array for it")
    assert found.errors[quantity] <= found.tolerance[quantity]


@pytest.mark.parametrize("path", [marked(path) for path in FILES])
def test_every_array_is_read(path):
    assert comparing.compare(path).unread == []


def test_every_file_is_compared():
    assert comparing.mismatched_files(GOLDEN) == []


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory with one small golden file, and no other expected."""
    monkeypatch.setattr(parts, "PARTS", {"j_metrics*": parts.PARTS["j_metrics*"]})
    shutil.copy(GOLDEN / "j_metrics.npz", tmp_path)
    return tmp_path


def change(directory, name, **arrays):
    with np.load(GOLDEN / "j_metrics.npz") as stored:
        np.savez(directory / name, **{**stored, **arrays})


def test_complete_directory_has_no_problem(directory, capsys):
    shutil.copy(GOLDEN / "README.md", directory)
    change(directory, "j_metrics_64")  # compared too
    assert main(directory) == []
    assert "| j_metrics | ranks that differ | 0.0e+00 | 0e+00 |" in capsys.readouterr().out
    assert [path.stem for path in comparing.compared_files(directory)] == [
        "j_metrics",
        "j_metrics_64",
    ]


@pytest.mark.parametrize("name", ["n_new.npz", "j_metrics.npy", "a_encoders.npz"])
def test_file_that_nothing_compares_is_named(directory, name):
    (directory / name).touch()
    [problem] = main(directory)
    assert name in problem and "nothing compares" in problem


def test_part_without_a_file_is_named(directory):
    (directory / "j_metrics.npz").unlink()
    assert main(directory) == [f"{directory}: no file j_metrics*.npz"]


def test_quantity_that_is_in_no_file_is_named(directory, monkeypatch):
    """The test of all quantities skips it."""
    part = parts.PARTS["j_metrics*"]
    more = part._replace(tolerance={**part.tolerance, "mean rank": 0.0})
    monkeypatch.setattr(parts, "PARTS", {"j_metrics*": more})
    assert main(directory) == ["j_metrics*: no file has mean rank"]


def test_array_that_nothing_reads_is_named(directory):
    change(directory, "j_metrics", **{"per1/new": np.zeros(3)})
    [problem] = main(directory)
    assert problem.endswith("nothing reads per1/new")


@pytest.mark.parametrize("wrong", [1.0, np.nan])
def test_error_is_named(directory, capsys, wrong):
    change(directory, "j_metrics", **{"per5/t2i": np.full(5, wrong)})
    [problem] = main(directory)
    assert "recalls and ranks" in problem and "(!)" in capsys.readouterr().out


def test_shapes_are_not_broadcast():
    with pytest.raises(ValueError, match=r"\(3,\).*\(1, 3\)"):
        difference(np.zeros(3), np.zeros((1, 3)))


def test_arrays_remember_what_was_read():
    arrays = Arrays({"a/b": np.zeros(1), "a/c": np.zeros(1), "d": np.zeros(1)})
    part = arrays.under("a/")
    assert list(part) == ["b", "c"] and "b" in part and "d" not in part
    assert part["c"] is not None and arrays.unread == ["a/b", "d"]
