"""The notebooks run from the first cell to the last, and give their stored results.

The output of the cell with the tag `compared` is a dict of results, which other versions of the
packages may change only a little.
"""

import ast
import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
NOTEBOOKS = Path(__file__).resolve().parents[2] / "experiments" / "notebooks"
MOST_BYTES = 150_000


def results(notebook) -> dict[str, int | str]:
    [cell] = [cell for cell in notebook.cells if "compared" in cell.metadata.get("tags", ())]
    return ast.literal_eval(cell.outputs[-1].data["text/plain"])


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_stored_outputs_are_complete_and_small(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and all(output.get("name") != "stderr" for output in outputs)
    assert path.stat().st_size < MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, within",
    [
        ("wrong_captions", 0.05),
        # Other versions of the packages have other functions.
        pytest.param("pairs_of_anything", 0.2, marks=pytest.mark.weights),
    ],
)
def test_notebook_runs_and_gives_its_stored_results(name, within, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parents[1]), prepend=os.pathsep)
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    expected = results(notebook)
    nbclient.execute(notebook, cwd=tmp_path, timeout=1200)
    found = results(notebook)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        tolerance = pytest.approx(value, rel=within, abs=10) if isinstance(value, int) else value
        assert found[key] == tolerance, key
