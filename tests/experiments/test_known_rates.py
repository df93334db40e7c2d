"""Scripts on a kept judge: means over seeds, and a clear end without the ratings."""

import pytest

from experiments.judging import rated
from experiments.judging.known_rates import Cell, summary
from l2rm_jax.errors import DataError


def test_a_summary_has_means_over_the_seeds():
    cells = [Cell(6000, 300, "hard", 0.2, seed) for seed in range(2)]
    rows = [
        {**cell._asdict(), "estimate": estimate, "held": held, "told": "True"}
        for cell, estimate, held in zip(cells, ("0.18", "0.22"), ("True", "False"), strict=True)
    ]
    [row] = summary(rows)
    assert row["estimate"] == "0.200" and (row["sets"], row["held"]) == (2, 1)
    assert (row["kind"], row["images"]) == ("hard", 300) and "seed" not in row


def test_ratings_that_are_absent_are_named(tmp_path, monkeypatch):
    flags = [f"--{name}={tmp_path}" for name in ("path", "rated", "vectors", "encoder")]
    monkeypatch.setattr("sys.argv", ["rated", *flags, f"--csv={tmp_path / 'rated.csv'}"])
    with pytest.raises(DataError, match=r"found no expert.csv, expected ratings"):
        rated.main()
