"""The example of the solver's page runs and prints the output shown there."""

import re
from pathlib import Path

import pytest

from l2rm_jax import ot


@pytest.mark.slow
def test_example(capsys):
    page = (Path(ot.__file__).parent / "README.md").read_text()
    ((code, shown),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(code, names)
    printed = capsys.readouterr().out
    assert printed == shown
    result = names["result"]
    assert result.converged and result.plan[2, 2] == 0
    # Cheapest three: 2 (courier 0, parcel 1), 3 (1, 2), 3 (4, 0); then 4 (3, 3).
    assert float(result.cost) == pytest.approx(8.0, abs=0.3)
    assert 3.0 < float(re.search(r"costs (\S+) minutes", printed)[1]) < 4.5
