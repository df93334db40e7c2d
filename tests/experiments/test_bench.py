"""Benchmarks run at tiny sizes and write their results."""

import json
import sys

import pytest

from experiments.bench import epoch, score, step, weights
from experiments.script import read_rows

TINY = ("--regions=3", "--features=6", "--repeats=2", "--embed_dim=8", "--sim_dim=8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags", "quantity"),
    [
        (step, (*TINY, "--head=vse", "--method=rcsl", "--batch=4"), "step_s"),
        (score, (*TINY, "--head=saf", "--images=3", "--captions=6"), "score_s"),
        (epoch, (*TINY, "--head=vse", "--method=triplet", "--batch=4", "--images=8"), "step_s"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_results_are_written(script, flags, quantity, tmp_path, monkeypatch):
    file = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["bench", *flags, f"--json={file}"])
    script.main()
    found = json.loads(file.read_text())
    assert 0 < found[quantity]["min"] <= found[quantity]["median"] <= found[quantity]["max"]
    assert found["sizes"]["regions"] == 3 and found["machine"]["devices"] >= 1
    assert found["machine"]["processor"] not in ("", "x86_64")
    assert (found.get("process_peak_gib", 0) > 0) == (script in (step, score))
    assert found["sizes"]["embed_dim"] == 8


@pytest.mark.slow
def test_cost_of_weights_has_a_row_per_method(tmp_path, monkeypatch):
    file = tmp_path / "cost.csv"
    monkeypatch.setattr(sys, "argv", ["bench", *TINY, "--batch=4", f"--csv={file}"])
    monkeypatch.setattr(weights, "METHODS", ("triplet",))
    weights.main()
    rows = read_rows(file)
    assert [row["method"] for row in rows] == ["triplet"]
    assert all(float(row["ratio with weights"]) > 0 for row in rows)


def operations(head: str, method: str, *more: str) -> float:
    flags = [*TINY, f"--head={head}", f"--method={method}", "--batch=8", *more]
    return step.bench_operations(step.flags().parse_args(flags))


def test_mining_scores_two_matrices_of_its_couples():
    """Both methods compare vectors, so the encoders do most of the work: of four sides, not two."""
    assert 1.5 < operations("vse", "rcsl_nc") / operations("vse", "infonce") < 2.5


@pytest.mark.slow
def test_hardest_negatives_skip_the_gradients_of_other_pairs():
    assert operations("saf", "triplet") == operations("saf", "infonce")
    assert operations("sgr", "triplet") < operations("sgr", "infonce")
