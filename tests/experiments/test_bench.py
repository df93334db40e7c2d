"""Benchmarks run at tiny sizes and write what they print."""

import json
import sys

import pytest

from experiments import scaling
from experiments.bench import compile, input, score, step

TINY = ("--embed_dim=8", "--sim_dim=8", "--regions=3", "--features=6", "--repeats=2")


@pytest.mark.parametrize(
    ("script", "flags", "quantity"),
    [
        (step, ("--head=vse", "--method=rcsl", "--batch=4"), "step_s"),
        (compile, ("--head=vse", "--method=infonce", "--batch=4"), "main_first_step_s"),
        (score, ("--head=saf", "--images=3", "--captions=6"), "score_s"),
        (input, ("--batch=4", "--images=4", "--steps=2"), "pairs_per_s"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_writes_what_it_measured(script, flags, quantity, tmp_path, monkeypatch):
    file = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["bench", *TINY, *flags, f"--json={file}"])
    script.main()
    found = json.loads(file.read_text())
    assert 0 < found[quantity]["min"] <= found[quantity]["median"] <= found[quantity]["max"]
    assert found["sizes"]["embed_dim"] == 8 and found["machine"]["devices"] >= 1


def test_a_step_of_mining_is_traced_with_its_two_matrices():
    flags = step.flags().parse_args([*TINY, "--head=saf", "--method=rcsl_nc", "--batch=64"])
    work = scaling.step_work(step.step_config(flags), 1, 14, 3, 6)
    head = step.product_flops(flags)
    assert 2 * head < work.operations < 4 * head  # with the encoders, and what is computed again


def test_products_of_a_step_are_counted():
    """By hand: one word, one region, one dimension, saf, one pair of one stream."""
    sizes = ("--head=saf", "--method=infonce", "--batch=1", "--words", "1", "1")
    flags = step.flags().parse_args([*TINY, *sizes, "--embed_dim=1", "--sim_dim=1", "--regions=1"])
    scores_and_context, projection, gate_and_filter = 2 + 2, 2, 2 * 2 + 2 * 2
    assert step.product_flops(flags) == 3 * (scores_and_context + projection + gate_and_filter)
