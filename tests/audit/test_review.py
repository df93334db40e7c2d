"""Review by eye: the sample, the decisions on it, and the rate that they imply."""

import numpy as np
import pytest

from l2rm_jax.audit.review import (
    HEADER,
    Decisions,
    check_sample,
    draw_review,
    read_decisions,
    reviewed_rate,
)
from l2rm_jax.errors import ConfigError, DataError

rng = np.random.default_rng(0)


def mixed_posterior(pairs=5000):
    """Posterior with a mean of a fifth, and the truth, in which some mismatches are undetected."""
    wrong = rng.random(pairs) < 0.2
    posterior = np.where(wrong, rng.beta(8, 0.5, pairs), rng.beta(0.05, 3, pairs))
    return posterior, wrong | (rng.random(pairs) < 0.05)


def decided(rows, weight, wrong) -> Decisions:
    words = np.where(wrong[rows], "wrong", "fits").astype(object)
    return Decisions(rows, words, np.full(len(rows), -1), np.ones(len(rows), bool), weight)


def test_the_sample_has_each_pair_once_with_the_weight_of_its_stratum():
    posterior, _ = mixed_posterior()
    rows, weight = draw_review(posterior, 100, seed=3)
    assert len(np.unique(rows)) == len(rows) == 100
    again = draw_review(posterior, 100, seed=3)
    np.testing.assert_array_equal(rows, again[0])
    assert not np.array_equal(rows, draw_review(posterior, 100, seed=4)[0])
    stratum = np.searchsorted([0.05, 0.5, 0.95], posterior)
    for each in range(4):
        own = stratum[rows] == each
        np.testing.assert_allclose(weight[own].sum(), np.count_nonzero(stratum == each))
    assert (np.diff(stratum[rows]) != 0).sum() > 20  # in random order
    rows, weight = draw_review(posterior[:30], 100)
    assert sorted(rows) == list(range(30)) and (weight == 1).all()


def test_each_pair_is_drawn_as_often_as_its_weight_says():
    posterior, _ = mixed_posterior(60)
    drawn = np.zeros(60)
    for seed in range(600):
        rows, weight = draw_review(posterior, 20, seed)
        drawn[rows] += weight
    np.testing.assert_allclose(drawn / 600, 1, atol=0.35)


@pytest.mark.parametrize("part", [100, 40], ids=["all", "the first 40"])
def test_the_interval_holds_the_rate_that_it_should(part):
    """At least 9 of 10 intervals contain the truth, even with low posteriors of mismatches."""
    posterior, wrong = mixed_posterior()
    errors, held = [], 0
    for seed in range(150):
        rows, weight = draw_review(posterior, 100, seed)
        found = reviewed_rate(decided(rows[:part], weight[:part], wrong), weight)
        errors.append(found.estimate - wrong.mean())
        held += found.low <= wrong.mean() <= found.high
        assert found.pairs == part
    assert abs(np.mean(errors)) < 3 * np.std(errors) / 12
    assert held / 150 > 0.84


def test_nothing_wrong_nothing_decided_and_pairs_that_do_not_count():
    posterior, wrong = mixed_posterior()
    rows, weight = draw_review(posterior, 100)
    found = reviewed_rate(decided(rows, weight, np.zeros_like(wrong)), weight)
    assert found.estimate == found.low == 0 and 0 < found.high < 0.1
    decisions = decided(rows, weight, wrong)
    by_list = decisions._replace(is_review=np.zeros(100, bool))
    unsure = decisions._replace(decision=np.full(100, "unsure", object))
    assert reviewed_rate(by_list, weight) is reviewed_rate(unsure, weight) is None


def write(path, *lines):
    path.write_text("\n".join([",".join(HEADER), *lines, ""]))
    return path


def test_decisions_are_read(tmp_path):
    path = write(tmp_path / "d.csv", "7,wrong,3,list,", "2,fits,,review,12.5", "0,unsure,,list,")
    found = read_decisions(path, 8)
    assert found.row.tolist() == [7, 2, 0] and found.decision.tolist() == [
        "wrong",
        "fits",
        "unsure",
    ]
    assert found.caption.tolist() == [3, -1, -1] and found.weight.tolist() == [0, 12.5, 0]
    assert found.is_review.tolist() == [False, True, False]
    assert found.rows("wrong").tolist() == [7]
    assert len(read_decisions(write(path), 8).row) == 0
    check_sample(found, np.array([5, 2]), np.array([3.0, 12.5]))
    with pytest.raises(DataError, match=r"row 2 .*12\.5"):
        check_sample(found, np.array([5, 2]), np.array([12.5, 3.0]))


def test_each_wrong_line_is_named(tmp_path):
    lines = [
        *("8,fits,,list,", "1,wrong,8,list,", "2,good,,list,", "3,fits,,both,", "4,fits,,review,"),
        *("5,fits,,review,nan", "6,fits,,list,2", "7,fits", "1,fits,,list,", "1,wrong,,list,"),
    ]
    path = write(tmp_path / "d.csv", *lines)
    with pytest.raises(DataError) as error:
        read_decisions(path, 8)
    starts = ["2: row: ", "3: caption: ", "4: decision: ", "5: door: ", "6: weight: "]
    starts += ["7: weight: ", "8: weight: ", "9: ", "11: "]
    for message, start in zip(error.value.args, starts, strict=True):
        assert message.startswith(f"{path}:{start}")
    path.write_text("pair,decision\n")
    with pytest.raises(DataError, match=r"d\.csv:1: found pair,decision"):
        read_decisions(path, 8)
    with pytest.raises(ConfigError, match=r"config\.audit\.review: "):
        read_decisions(tmp_path / "none.csv", 8)
