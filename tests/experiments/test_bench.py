"""Benchmarks run at tiny sizes and write their results."""

import csv
import json
import sys

import pytest

from experiments.bench import compile, epoch, input, methods, pretrained, score, step
from experiments.machines import work
from tests.models.pretrained.golden import GOLDEN

DATA = ("--regions=3", "--features=6", "--repeats=2")
TINY = (*DATA, "--embed_dim=8", "--sim_dim=8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "flags", "quantity"),
    [
        (step, (*TINY, "--head=vse", "--method=rcsl", "--batch=4"), "step_s"),
        (compile, (*TINY, "--head=vse", "--method=infonce", "--batch=4"), "main_first_step_s"),
        (score, (*TINY, "--head=saf", "--images=3", "--captions=6"), "score_s"),
        (input, (*DATA, "--batch=4", "--images=4", "--steps=2"), "pairs_per_s"),
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
    assert ("head" in found["sizes"]) == (script is not input)
    assert script is input or found["sizes"]["embed_dim"] == 8


@pytest.mark.slow
def test_a_step_of_a_pretrained_encoder(tmp_path, monkeypatch):
    file = tmp_path / "found.json"
    flags = [f"--pretrained={GOLDEN / 'bert'}", "--batch=8", "--pieces=16", "--repeats=1"]
    found = {}
    for more in ((), ("--remat",)):
        monkeypatch.setattr(sys, "argv", ["bench", *flags, *more, f"--json={file}"])
        pretrained.main()
        found[more] = json.loads(file.read_text())
        assert found[more]["cpu_s"] > 0 and found[more]["sizes"]["pieces"] == 16
    assert found[("--remat",)]["temporary_mib"] < found[()]["temporary_mib"]


def operations(head: str, method: str, *more: str) -> float:
    flags = [*TINY, f"--head={head}", f"--method={method}", "--batch=8", *more]
    return work.bench_operations(step.flags().parse_args(flags))


def test_mining_scores_two_matrices_of_its_couples():
    """Both methods compare vectors, so the encoders do most of the work: of four sides, not two."""
    assert 1.5 < operations("vse", "rcsl_nc") / operations("vse", "infonce") < 2.5


def test_products_of_a_step_are_counted():
    """One more number per vector adds the products of that number, in the encoders and the head."""
    small, large = (
        operations("vse", "infonce", f"--features={size}", "--regions=1") for size in (6, 7)
    )
    assert large - small == 2 * 2 * 8 * 8  # of the projection: forward, and its gradient


@pytest.mark.slow
def test_hardest_negatives_skip_the_gradients_of_other_pairs():
    assert operations("saf", "triplet") == operations("saf", "infonce")
    assert operations("sgr", "triplet") < operations("sgr", "infonce")


@pytest.mark.slow
def test_every_method_is_measured_beside_the_baseline(tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "PASSES", {"triplet": 3, "infonce": 3})  # the others compile long
    file = tmp_path / "costs.csv"
    monkeypatch.setattr(sys, "argv", ["bench", *TINY, "--batch=4", "--head=vse", f"--csv={file}"])
    methods.main()
    with file.open(newline="") as table:
        first, second = csv.DictReader(table)
    assert [
        first[name] for name in ("method", "networks", "expected", "vse time", "vse operations")
    ] == ["triplet", "1", *["1.00"] * 3]
    assert second["method"] == "infonce" and float(second["vse time"]) > 0
