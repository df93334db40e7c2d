"""The example of the page about the solver, run as it stands."""

import re
from pathlib import Path

import pytest

from l2rm_jax import ot


def test_example(capsys):
    page = (Path(ot.__file__).parent / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(example.splitlines()) <= 12  # "ten lines"
    names = {}
    exec(example, names)
    result = names["result"]
    assert result.converged and result.plan[2, 2] == 0
    # Cheapest three: 2 (courier 0, parcel 1), 3 (1, 2), 3 (4, 0); then 4 (3, 3).
    assert float(result.cost) == pytest.approx(8.0, abs=0.3)
    next_one = float(capsys.readouterr().out.split("costs")[1])
    assert 3.0 < next_one < 4.5
