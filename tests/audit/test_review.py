"""Review by eye: the sample, the decisions on it, and the rate that they imply."""

import numpy as np
import pytest

from l2rm_jax.audit.certificate import draw_sample
from l2rm_jax.audit.review import (
    HEADER,
    LIST,
    REVIEW,
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
    return Decisions(rows, words, np.full(len(rows), -1), np.full(len(rows), REVIEW), weight)


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
        found = reviewed_rate(decided(rows[:part], weight[:part], wrong), rows, weight)
        errors.append(found.estimate - wrong.mean())
        held += found.low <= wrong.mean() <= found.high
        assert found.pairs == part
    assert abs(np.mean(errors)) < 3 * np.std(errors) / 12
    assert held / 150 > 0.84


def test_the_interval_holds_where_few_of_many_kept_pairs_are_wrong():
    """The 100 kept pairs of a certificate's review often have no wrong one."""
    wrong = np.arange(5000) < 500
    wrong[500:] = rng.random(4500) < 0.016
    held = 0
    for seed in range(150):
        rows, weight = draw_sample(np.arange(500, 5000), 5000, 133, 0.05, seed)
        found = reviewed_rate(decided(rows, weight, wrong), rows, weight)
        held += found.low <= wrong.mean() <= found.high
    assert held / 150 > 0.84


def test_nothing_wrong_nothing_decided_and_pairs_that_do_not_count():
    posterior, wrong = mixed_posterior()
    rows, weight = draw_review(posterior, 100)
    found = reviewed_rate(decided(rows, weight, np.zeros_like(wrong)), rows, weight)
    assert found.estimate == found.low == 0 and 0 < found.high < 0.1
    decisions = decided(rows, weight, wrong)
    by_list = decisions._replace(door=np.full(100, LIST))
    unsure = decisions._replace(decision=np.full(100, "unsure", object))
    assert reviewed_rate(by_list, rows, weight) is reviewed_rate(unsure, rows, weight) is None


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
    assert found.caption.tolist() == [3, -1, -1]
    np.testing.assert_array_equal(found.weight, [np.nan, 12.5, np.nan])
    assert found.is_review.tolist() == [False, True, False] and found.by == "eye"
    assert found.rows("wrong").tolist() == [7]
    assert len(read_decisions(write(path), 8).row) == 0
    check_sample(found, np.array([5, 2]), np.array([3.0, 12.5]))
    with pytest.raises(DataError, match=r"row 2 .*12\.5"):
        check_sample(found, np.array([5, 2]), np.array([12.5, 3.0]))


def test_row_and_decision_are_enough_and_the_door_names_the_judge(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("row,decision\n7,wrong\n2,fits\n")
    found = read_decisions(path, 8)
    assert found.door.tolist() == [REVIEW, REVIEW] and found.by == "eye"
    assert found.of_review(np.array([2, 3, 7])).tolist() == ["fits", "", "wrong"]
    check_sample(found, np.array([2, 7]), np.array([4.0, 4.0]))
    with pytest.raises(DataError, match="row 7 is not in"):
        check_sample(found, np.array([2, 5]), np.array([4.0, 4.0]))
    path.write_text("decision;row;door\nwrong;7;model 2.1\nfits;2;review\nfits;3;list\n")
    found = read_decisions(path, 8)
    assert found.is_review.tolist() == [True, True, False] and found.by == "model 2.1 and eye"


ENTRIES = [(7, "wrong", 3, "list", None), (2, "fits", None, "review", 12.5)]
ENTRIES += [(0, "unsure", None, "list", None), (5, "fits", None, "review", 1.0)]


def by_pandas(path, **settings):
    pd = pytest.importorskip("pandas")
    pd.DataFrame(ENTRIES, columns=HEADER).to_csv(path, **settings)


def by_hand(path, separator=",", encoding="utf-8", end="\n", quote="", point=".", more=()):
    names = [*more, *HEADER[::-1]]
    rows = [names, *([*(f"a {name}" for name in more), *entry[::-1]] for entry in ENTRIES)]
    cells = [
        ["" if cell is None else str(cell).replace(".", point) for cell in row] for row in rows
    ]
    lines = [separator.join(f"{quote}{cell}{quote}" for cell in row) for row in cells]
    path.write_bytes("".join(f"{line}{end}" for line in lines).encode(encoding))


@pytest.mark.parametrize(
    "save",
    [
        lambda path: by_pandas(path),
        lambda path: by_pandas(path, index=False),
        lambda path: by_pandas(path, index=False, sep="\t"),
        lambda path: by_pandas(path, index=False, float_format="%.3f"),
        lambda path: by_hand(path, ";", "utf-8-sig", "\r\n", '"'),
        lambda path: by_hand(path, ";", point=","),
        lambda path: by_hand(path, quote='"', point=","),
        lambda path: by_hand(path, "\t", "utf-16"),
        lambda path: by_hand(path, "|", more=("note", "by")),
        lambda path: by_hand(path, end="\r", more=("by",)),
    ],
)
def test_decisions_that_other_programs_have_saved_are_the_same(tmp_path, save):
    save(tmp_path / "d.csv")
    found = read_decisions(tmp_path / "d.csv", 8)
    assert found.row.tolist() == [7, 2, 0, 5] and found.caption.tolist() == [3, -1, -1, -1]
    assert found.decision.tolist() == [entry[1] for entry in ENTRIES]
    assert found.is_review.tolist() == [False, True, False, True]
    np.testing.assert_array_equal(found.weight, [np.nan, 12.5, np.nan, 1])


def test_numbers_that_are_not_whole_are_refused(tmp_path):
    path = write(tmp_path / "d.csv", "7.5,wrong,,list,", "1,wrong,2.5,list,", "-1.0,fits,,list,")
    with pytest.raises(DataError) as error:
        read_decisions(path, 8)
    assert [message.split(": ")[1] for message in error.value.args] == ["row", "caption", "row"]


def test_decisions_on_other_pairs_are_refused(tmp_path):
    path = tmp_path / "d.csv"
    lines = ["1,fits,,list,,texts:a", "2,fits,,list,,texts:b", "3,fits,,list,,", "4,fits,,list,"]
    path.write_text("\n".join([",".join([*HEADER, "pairs"]), *lines]))
    with pytest.raises(DataError, match=r"d\.csv:3: .*texts:b.*texts:a") as error:
        read_decisions(path, 8, "texts:a")
    assert len(error.value.args) == 1
    assert len(read_decisions(path, 8).row) == 4  # nothing to compare with
    assert len(read_decisions(path, 8, "vectors:c").row) == 4  # of another kind


def test_each_wrong_line_is_named(tmp_path):
    lines = [
        *("8,fits,,list,", "1,wrong,8,list,", "2,good,,list,", "3,fits,,a<b,", "4,fits,,review,x"),
        *("5,fits,,review,nan", "6,fits,,list,2", "7", "1,fits,,list,", "1,wrong,,list,"),
    ]
    path = write(tmp_path / "d.csv", *lines)
    with pytest.raises(DataError) as error:
        read_decisions(path, 8)
    starts = ["2: row: ", "3: caption: ", "4: decision: ", "5: door: ", "6: weight: "]
    starts += ["7: weight: ", "8: weight: ", "9: decision: ", "11: "]
    for message, start in zip(error.value.args, starts, strict=True):
        assert message.startswith(f"{path}:{start}")
    path.write_text("pair,decision\n")
    with pytest.raises(DataError, match=r"d\.csv:1: found pair,decision"):
        read_decisions(path, 8)
    with pytest.raises(ConfigError, match=r"config\.audit\.review: "):
        read_decisions(tmp_path / "none.csv", 8)
