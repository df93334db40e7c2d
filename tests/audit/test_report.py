"""The report of an audit: its first sentences, tables and numbers."""

import json

import numpy as np

from l2rm_jax.audit import report
from l2rm_jax.audit.review import Decisions, ReviewedRate
from l2rm_jax.judging.judgement import PLACEHOLDER
from l2rm_jax.judging.placeholders import Placeholder
from l2rm_jax.judging.posterior import Mechanism
from l2rm_jax.judging.shift import Shift
from l2rm_jax.judging.verdict import doubted_list, shift_sentence, verdict
from tests.audit.made import (
    PAIRS,
    POSTERIOR,
    make_audit,
    make_inputs,
    make_judgement,
)


def test_the_first_sentences():
    assert verdict(make_judgement()) == [
        "10.8% of the pairs fit no better than random ones (90%: 5.0 to 20.0).",
        "The first 4 hold 85% of them; 1 in 13 of these is a false alarm.",
        "Captions of a similar image are not seen, by a test with such pairs.",
        "At least 5.0% of the pairs are mismatched, and at most 35.0% if captions were swapped "
        "among similar images.",
    ]
    assert repr(make_judgement()) == "\n".join(verdict(make_judgement()))
    assert 3.70 / POSTERIOR.sum() > 0.845  # which is what the second sentence says
    seen = [Mechanism("near", 0.9, 0.62, 0.1, 0.9)]
    assert verdict(make_judgement(mechanisms=seen))[2] == (
        "Captions of a similar image are seen in part, by a test with such pairs."
    )
    blind = [Mechanism("near", 0.9, np.nan, 0.1, 0.9)]
    assert verdict(make_judgement(mechanisms=blind))[2] == (
        "Captions of a similar image are not seen."
    )


def test_bounds_are_said_where_they_say_more_than_the_interval():
    said = verdict(make_judgement())[3]
    for at_most in (0.2, 1.0):
        assert said not in verdict(make_judgement(at_most=at_most))
        assert len(verdict(make_judgement(at_most=at_most))) == 3
    page = report.page(make_audit(), None, [])
    assert said in page and "the second most like it" in page
    unknown = make_audit(cannot_tell="too few pairs")
    assert "the second most like it" not in report.page(unknown, None, [])
    assert report.values(make_audit(), None)["at_most"] == 0.35


def test_a_list_without_doubt_and_one_without_false_alarms():
    clean = make_judgement(posterior=np.zeros(PAIRS), q=np.ones(PAIRS), listed=0)
    assert verdict(clean)[1] == (
        "No list of doubted pairs would have fewer than 1 false alarm in 10."
    )
    sure = make_judgement(posterior=np.ones(PAIRS), q=np.full(PAIRS, 1e-4), listed=40)
    assert verdict(sure)[1] == (
        "The first 40 hold 100% of them; fewer than 1 in 100 of these is a false alarm."
    )


def test_where_it_cannot_tell_that_is_all_it_says():
    lines = verdict(make_judgement(cannot_tell="pairs are alike"))
    help_ = (
        "More pairs would help, or vectors of an encoder that was trained on many pairs of images "
        "and texts."
    )
    assert lines == [
        "The list can be used: a pair that is mismatched at random comes before a matched one in "
        "at least 93 of 100 cases.",
        f"Cannot tell how many pairs are mismatched: pairs are alike. {help_}",
        "Captions of a similar image may not be seen.",
    ]
    lines = verdict(make_judgement(cannot_tell="pairs are alike", ranks=False))
    assert lines == [
        f"Cannot tell which pairs are mismatched, or how many: pairs are alike. {help_}"
    ]


def test_where_it_cannot_tell_no_table_looks_like_success():
    titles = [title for title, *_ in report.tables(make_audit())]
    assert titles[:2] == [
        "What is said of the pairs",
        "How well pairs that were mismatched on purpose are found",
    ]
    doubtful = make_audit(cannot_tell="pairs are alike")
    assert [title for title, *_ in report.tables(doubtful)] == titles[2:]
    page = report.page(doubtful, None, [])
    assert "AUROC" not in page and "10.8%" not in page


def test_placeholders_are_named_and_left_out_of_the_list():
    kind = make_judgement().kind.copy()
    kind[30:] = PLACEHOLDER
    posterior = np.where(kind == PLACEHOLDER, 1, make_judgement().posterior)
    found = make_audit(
        kind=kind,
        posterior=posterior,
        placeholders=[Placeholder(15, 5, 10), Placeholder(3, 2, 8)],
    )
    assert doubted_list(found.judgement).holds == doubted_list(make_judgement()).holds
    assert verdict(found.judgement, found.inputs.ids)[-1] == (
        "The same picture (photos/15.jpg) stands with 10 captions that have nothing in common: "
        "these pairs are left out of all other numbers, as of 1 more pictures."
    )
    [rows] = [rows for title, _, rows in report.tables(found) if title.startswith("The same pict")]
    assert rows[0] == ("photos/15.jpg", "15", "5", "10")


def test_shifts():
    assert shift_sentence(Shift(8, 1030, 2)) == (
        "Rows 8 to 1,030: the captions fit the images of 2 rows after."
    )


def test_warnings():
    assert report.warnings(make_audit(), None) == []
    [line] = report.warnings(make_audit(), ReviewedRate(0.4, 0.3, 0.5, 100))
    assert "By eye, more pairs are wrong (40.0%, 90%: 30.0 to 50.0)" in line
    [line] = report.warnings(make_audit(), ReviewedRate(0.01, 0.0, 0.02, 100))
    assert "By eye, fewer pairs are wrong" in line
    assert report.warnings(make_audit(), ReviewedRate(0.15, 0.1, 0.3, 100)) == []


def test_the_page_starts_with_the_verdict_and_shows_texts_as_they_are():
    audit = make_audit()
    page = report.page(audit, None, ["kept.npy: rows"])
    parts = page.split("\n\n")
    assert parts[0] == "# Audit of data/mine" and parts[2:6] == verdict(audit.judgement)
    assert (
        r"| photos/0.jpg | 0: a \<b\>\|dog\|\</b\> \`on\` \*a\* \[beach\](x) | 1: caption 1 |"
        in page
    )
    assert (
        "| all captions of an image moved to another one | 0.990 | 0.950 | 90.0% | 2.0% |" in page
    )
    assert "| one caption moved to an image with similar captions | 0.600 | - | 4.0% |" in page
    assert (
        "| Rows 8 to 30: the captions fit the images of the row before. |" in page
        and "| 12 | 0 |" in page
    )
    assert "| foreign" not in page  # no such pair
    assert page == report.page(make_audit(), None, ["kept.npy: rows"])


def test_decisions_and_truth_stand_in_the_page_and_in_the_numbers():
    decisions = Decisions(
        np.array([1, 2]), np.array(["wrong", "fits"], object), *np.zeros((3, 2), int)
    )
    truth = np.arange(PAIRS) < 8
    audit = make_audit(inputs=make_inputs(truth=truth), decisions=decisions)
    rate = ReviewedRate(0.2, 0.1, 0.3, 2)
    page = report.page(audit, rate, [])
    assert "2 pairs were decided, 1 of them wrong and 0 unsure." in page
    one = Decisions(np.array([1]), np.array(["wrong"], object), *np.zeros((3, 1), int))
    assert report.by_eye(one, None) == "1 pair was decided: wrong."
    assert "20.0%, 90%: 10.0 to 30.0 of all pairs are wrong" in page
    assert "20.0% of the pairs were mismatched on purpose" in page
    found = report.values(audit, rate)["truth"]
    assert found == {"rate": 0.2, "auroc": 1.0, "list_recall": 0.5, "list_false_alarms": 0.0}


def test_the_numbers_are_json_without_nan():
    content = json.loads(report.to_json(report.values(make_audit(), None)))
    assert content["rate"] == {"estimate": 0.108, "low": 0.05, "high": 0.2}
    assert content["kinds"]["doubtful"] == 4 and content["conflicts"] == [[0, 1]]
    assert content["mechanisms"][1]["cosine_auroc"] is None
    assert content["settings"]["top"] == 5 and content["inputs"]["digest"] == "0123456789abcdef"
