"""Report of an audit: its first sentences, tables and numbers."""

import json
import re

import numpy as np

from l2rm_jax.audit import report
from l2rm_jax.audit.review import Decisions, ReviewedRate
from l2rm_jax.judging.judgement import PLACEHOLDER
from l2rm_jax.judging.placeholders import Placeholder
from l2rm_jax.judging.posterior import Mechanism
from l2rm_jax.judging.rate import Rate
from l2rm_jax.judging.shift import Shift
from l2rm_jax.judging.verdict import shift_sentence, suspicious_list, verdict
from tests.audit.made import (
    PAIRS,
    POSTERIOR,
    make_audit,
    make_inputs,
    make_judgement,
)


def numbers(sentence: str) -> list[str]:
    """Return all numbers of a sentence."""
    return re.findall(r"\d+(?:[.,]\d+)*", sentence)


def test_the_first_sentences():
    rate, listed, near, bounds = verdict(make_judgement())
    assert numbers(rate) == ["11", "90", "5.0", "20.0"] and "random pairs" in rate
    assert numbers(listed) == ["4", "85", "8"] and "false alarms" in listed
    assert 3.70 / POSTERIOR.sum() > 0.845  # the share in the second sentence
    assert "similar images are not detected" in near and "simulated" in near
    assert numbers(bounds) == ["5.0", "35.0"] and "similar images" in bounds
    assert repr(make_judgement()) == "\n".join(verdict(make_judgement()))
    partly = [Mechanism("near", 0.9, 0.62, 0.1, 0.9)]
    assert "partly detected" in verdict(make_judgement(mechanisms=partly))[2]
    blind = [Mechanism("near", 0.9, np.nan, 0.1, 0.9)]
    assert verdict(make_judgement(mechanisms=blind))[2].endswith("are not detected.")


def test_a_small_rate_keeps_a_digit():
    assert numbers(verdict(make_judgement(rate=Rate(0.034, 0.01, 0.05)))[0])[0] == "3.4"


def test_bounds_are_stated_if_they_exceed_the_interval():
    stated = verdict(make_judgement())[3]
    for at_most in (0.2, 1.0):
        assert stated not in verdict(make_judgement(at_most=at_most))
        assert len(verdict(make_judgement(at_most=at_most))) == 3
    page = report.page(make_audit(), None, [])
    assert stated in page and "the second most similar" in page
    unknown = make_audit(cannot_tell="too few pairs")
    assert "the second most similar" not in report.page(unknown, None, [])
    assert report.values(make_audit(), None)["at_most"] == 0.35


def test_a_list_without_suspicion_and_one_without_false_alarms():
    clean = make_judgement(posterior=np.zeros(PAIRS), q=np.ones(PAIRS), listed=0)
    assert verdict(clean)[1].startswith("No list of suspicious pairs")
    sure = make_judgement(posterior=np.ones(PAIRS), q=np.full(PAIRS, 1e-4), listed=40)
    assert numbers(verdict(sure)[1]) == ["40", "100", "1"] and "under 1%" in verdict(sure)[1]


def test_where_it_cannot_tell_that_is_all_it_says():
    ranking, reason, near = verdict(make_judgement(cannot_tell="pairs are equal"))
    assert numbers(ranking) == ["93"] and "ranking is usable" in ranking
    assert "Cannot tell" in reason and "pairs are equal" in reason and "encoder" in reason
    assert "undetected" in near
    [reason] = verdict(make_judgement(cannot_tell="pairs are equal", ranks=False))
    assert "Cannot tell which" in reason and "pairs are equal" in reason


def test_where_it_cannot_tell_no_table_looks_like_success():
    titles = [title for title, *_ in report.tables(make_audit())]
    assert titles[:2] == ["Kinds of pairs", "Detection of simulated swaps"]
    unreliable = make_audit(cannot_tell="pairs are equal")
    assert [title for title, *_ in report.tables(unreliable)] == titles[2:]
    page = report.page(unreliable, None, [])
    assert "AUROC" not in page and "About 11%" not in page


def test_placeholders_are_named_and_left_out_of_the_list():
    kind = make_judgement().kind.copy()
    kind[30:] = PLACEHOLDER
    posterior = np.where(kind == PLACEHOLDER, 1, make_judgement().posterior)
    found = make_audit(
        kind=kind,
        posterior=posterior,
        placeholders=[Placeholder(15, 5, 10), Placeholder(3, 2, 8)],
    )
    assert suspicious_list(found.judgement).holds == suspicious_list(make_judgement()).holds
    last = verdict(found.judgement, found.inputs.ids)[-1]
    assert "(photos/15.jpg)" in last and "10 unrelated captions" in last and "1 more" in last
    [rows] = [rows for title, _, rows in report.tables(found) if "unrelated captions" in title]
    assert rows[0] == ("photos/15.jpg", "15", "5", "10")


def test_shifts():
    sentence = shift_sentence(Shift(8, 1030, 2))
    assert numbers(sentence) == ["8", "1,030", "2"] and "2 rows later" in sentence
    assert "one row earlier" in shift_sentence(Shift(8, 30, -1))


def test_warnings():
    assert report.warnings(make_audit(), None) == []
    [line] = report.warnings(make_audit(), ReviewedRate(0.4, 0.3, 0.5, 100))
    assert "By eye, 40.0% (90% CI: 30.0-50.0%)" in line and "more than" in line
    [line] = report.warnings(make_audit(), ReviewedRate(0.01, 0.0, 0.02, 100))
    assert "By eye, 1.0% (90% CI: 0.0-2.0%)" in line and "fewer than" in line
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
    assert f"| {shift_sentence(Shift(8, 30, -1))} |" in page and "| 12 | 0 |" in page
    assert "| swapped set" not in page  # no such pair
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
    assert "20.0% (90% CI: 10.0-30.0%) of all pairs are wrong" in page
    assert "20.0% of the pairs were mismatched on purpose" in page
    found = report.values(audit, rate)["truth"]
    assert found == {"rate": 0.2, "auroc": 1.0, "list_recall": 0.5, "list_false_alarms": 0.0}


def test_the_numbers_are_json_without_nan():
    content = json.loads(report.to_json(report.values(make_audit(), None)))
    assert content["rate"] == {"estimate": 0.108, "low": 0.05, "high": 0.2}
    assert content["kinds"]["swapped_caption"] == 4 and content["conflicts"] == [[0, 1]]
    assert content["mechanisms"][1]["cosine_auroc"] is None
    assert content["settings"]["top"] == 5 and content["inputs"]["digest"] == "0123456789abcdef"
