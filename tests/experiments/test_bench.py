"""Benchmarks run at tiny sizes and write what they print."""

import json
import sys

import pytest

from experiments import scaling
from experiments.bench import compile, epoch, input, score, step

DATA = ("--regions=3", "--features=6", "--repeats=2")
TINY = (*DATA, "--embed_dim=8", "--sim_dim=8")


@pytest.mark.parametrize(
    ("script", "flags", "quantity"),
    [
        (step, (*TINY, "--head=vse", "--method=rcsl", "--batch=4"), "step_s"),
        (compile, (*TINY, "--head=vse", "--method=infonce", "--batch=4"), "main_first_step_s"),
        (score, (*TINY, "--head=saf", "--images=3", "--captions=6"), "score_s"),
        (input, (*DATA, "--batch=4", "--images=4", "--steps=2"), "pairs_per_s"),
        (epoch, (*TINY, "--head=vse", "--method=rcsl", "--batch=4", "--images=8"), "step_s"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_writes_what_it_measured(script, flags, quantity, tmp_path, monkeypatch):
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


def test_mining_takes_two_couples_a_row_and_scores_two_matrices():
    flags, triplet = (
        step.flags().parse_args([*TINY, "--head=saf", f"--method={method}", "--batch=8"])
        for method in ("rcsl_nc", "triplet")
    )
    assert step.product_flops(flags) == 2 * step.product_flops(triplet)
    flags.head = "vse"
    assert scaling.step_work(step.step_config(flags), 4, 12, 3, 6).operations > 0


def test_products_of_a_step_are_counted():
    """By hand: one word, one region, one dimension, saf, one pair of one stream."""
    sizes = ("--head=saf", "--method=infonce", "--batch=1", "--words", "1", "1")
    flags = step.flags().parse_args([*TINY, *sizes, "--embed_dim=1", "--sim_dim=1", "--regions=1"])
    scores_and_context, projection, gate_and_filter = 2 + 2, 2, 2 * 2 + 2 * 2
    assert step.product_flops(flags) == 3 * (scores_and_context + projection + gate_and_filter)


def test_hardest_negatives_have_the_gradients_of_three_pairs_a_caption():
    def flops(head, method):
        flags = step.flags().parse_args(
            [*TINY, f"--head={head}", f"--method={method}", "--batch=6"]
        )
        return step.product_flops(flags)

    assert flops("saf", "triplet") == flops("saf", "infonce")
    assert flops("sgr", "triplet") == flops("sgr", "infonce") * (1 + 2 * 3 / 6) / 3
    assert flops("sgr", "l2rm") == flops("sgr", "triplet") + flops("sgr", "infonce")
