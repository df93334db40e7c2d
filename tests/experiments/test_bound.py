"""The audits that measure the bounds: which ones, a row, and the means of rows."""

import numpy as np
import pytest

from experiments.judging import bound
from experiments.judging.audit import Vectors
from experiments.judging.bound import Cell
from l2rm_jax.judging.rate import Rate
from tests.audit.made import make_judgement
from tests.judging.synthetic import make_pairs


def test_bounds_beside_the_truth():
    found = make_judgement(rate=Rate(0.1, 0.05, 0.15), upper_bound=0.3)
    for true, of_rate, of_bounds in [(0.04, 0, 0), (0.05, 1, 1), (0.2, 0, 1), (0.31, 0, 0)]:
        row = bound.bounds(found, true)
        assert (row["rate_held"], row["held"], row["told"]) == (of_rate, of_bounds, True)


def test_summary_leaves_out_audits_that_cannot_tell():
    row = {"protocol": "hard", "told": "True", "held": "True", "rate_held": "False"}
    row |= {"true": "0.2", "rate": "0.01", "at_least": "0.0", "at_most": "0.4"}
    rows = [row, row | {"held": "False", "at_most": "0.1"}, row | {"told": "False"}]
    hard, everything = bound.summary(rows)
    assert hard == {
        **{"protocol": "hard", "audits": 2, "rate_holds": "0.00", "bounds_hold": "0.50"},
        **{"true": "0.200", "rate": "0.010", "at_least": "0.000", "at_most": "0.250"},
        "width": "0.250",
    }
    assert everything == hard | {"protocol": "all"}


@pytest.mark.slow
def test_a_row_is_of_the_images_of_its_seed():
    images, captions, own, _ = make_pairs(300, 2, 0.0)
    captions, own = np.repeat(captions, [3, 2] * 300, axis=0), np.repeat(own, [3, 2] * 300)
    captions = captions + 0.01 * np.random.default_rng(0).standard_normal(captions.shape)
    of = {"minilm": captions.astype(np.float32), "tfidf": captions.astype(np.float32)}
    vectors = Vectors(images, of, own, [""] * 1500)
    [row] = bound.measure(Cell(150, 5, "caption", 0.2, 1), vectors)
    assert float(row["true"]) == pytest.approx(0.2, abs=0.02)
    assert float(row["at_least"]) <= float(row["rate"]) <= float(row["at_most"])
