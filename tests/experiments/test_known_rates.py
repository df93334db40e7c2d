"""Scripts on a kept judge: means over seeds, and a clear end without the ratings."""

import numpy as np
import pytest

from experiments.judging import rated
from experiments.judging.known_rates import Cell, summary
from experiments.judging.splits import of_list
from l2rm_jax.errors import DataError


def test_a_summary_has_means_over_the_seeds():
    cells = [Cell(6000, 300, "hard", 0.2, seed) for seed in range(2)]
    rows = [
        {**cell._asdict(), "estimate": estimate, "held": held, "told": "True"}
        for cell, estimate, held in zip(cells, ("0.18", "0.22"), ("True", "False"), strict=True)
    ]
    rows[0] = {name: str(value) for name, value in rows[0].items()}  # as a file has it
    [row] = summary(rows)
    assert row["estimate"] == "0.200" and (row["sets"], row["held"]) == (2, 1)
    assert (row["kind"], row["images"]) == ("hard", "300") and "seed" not in row


def test_a_list_has_a_share_of_false_alarms():
    p = np.array([1e-4, 1e-4, 1e-4, 1e-4, 0.5, 0.6, 0.7, 0.8])
    wrong = np.array([True, True, True, False, True, False, False, False])
    assert of_list("hard", p, wrong) == {"hard: false": 0.25, "hard: found": 0.75}
    assert of_list("hard", p + 0.2, wrong) == {"hard: false": 0, "hard: found": 0}


def test_ratings_that_are_absent_are_named(tmp_path, monkeypatch):
    flags = [f"--{name}={tmp_path}" for name in ("path", "rated", "vectors", "encoder")]
    monkeypatch.setattr("sys.argv", ["rated", *flags, f"--csv={tmp_path / 'rated.csv'}"])
    with pytest.raises(DataError, match=r"found no expert.csv, expected ratings"):
        rated.main()
