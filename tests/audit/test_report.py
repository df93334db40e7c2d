"""Report of an audit: its first sentences, tables and numbers."""

import json
import re

import numpy as np
import pytest

from l2rm_jax.audit import report
from l2rm_jax.audit.review import Decisions, ReviewedRate
from l2rm_jax.judging.groups import Placeholder
from l2rm_jax.judging.judgement import PLACEHOLDER, Mechanism
from l2rm_jax.judging.verdict import suspicious_list, verdict
from tests.audit.made import (
    PAIRS,
    POSTERIOR,
    make_audit,
    make_judgement,
    mismatched_pairs,
)


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


def test_the_verdict_has_the_numbers_of_the_judgement():
    rate, found, near, bound = verdict(make_judgement())
    assert numbers(rate)[0] == pytest.approx(10.8, abs=0.5) and {5.0, 20.0} <= {*numbers(rate)}
    assert {4, 85} <= {*numbers(found)} and 3.70 / POSTERIOR.sum() > 0.845
    assert {5.0, 35.0} <= {*numbers(bound)}
    assert repr(make_judgement()) == "\n".join(verdict(make_judgement()))
    seen = [Mechanism("near", 0.9, 0.62, 0.1, 0.9)]
    assert verdict(make_judgement(mechanisms=seen))[2] != near


def test_bounds_are_said_where_they_say_more_than_the_interval():
    said = verdict(make_judgement())[3]
    for upper_bound in (0.2, 1.0, np.nan):
        assert len(verdict(make_judgement(upper_bound=upper_bound))) == 3
    assert said in report.page(make_audit(), None, [])
    assert report.values(make_audit(), None)["at_most"] == 0.35
    assert report.values(make_audit(upper_bound=np.nan), None)["at_most"] is None


def test_where_it_cannot_tell_no_number_looks_like_success():
    for ranks in (True, False):
        lines = verdict(make_judgement(unreliable_reason="pairs are alike", is_rankable=ranks))
        assert any("pairs are alike" in line for line in lines)
    unclear = make_audit(unreliable_reason="pairs are alike")
    titles = [title for title, *_ in report.tables(make_audit())]
    assert [title for title, *_ in report.tables(unclear)] == titles[2:]
    page = report.page(unclear, None, [])
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
    assert suspicious_list(found.judgement).holds == suspicious_list(make_judgement()).holds
    last = verdict(found.judgement, found.pairs.ids)[-1]
    assert "photos/15.jpg" in last and "10" in last
    assert any(
        rows and rows[0] == ("photos/15.jpg", "30", "5", "10")
        for _, _, rows in report.tables(found)
    )


def test_decisions_outside_the_interval_are_a_warning():
    for rate in (ReviewedRate(0.4, 0.3, 0.5, 100), ReviewedRate(0.01, 0.0, 0.02, 100)):
        [_] = report.warnings(make_audit(), rate)
    for rate in (None, ReviewedRate(0.15, 0.1, 0.3, 100)):
        assert report.warnings(make_audit(), rate) == []


def test_the_page_starts_with_the_verdict_and_shows_texts_as_they_are():
    audit = make_audit()
    page = report.page(audit, None, ["kept.npy: rows"])
    parts = page.split("\n\n")
    assert parts[0] == "# Audit of data/mine" and parts[2:6] == verdict(audit.judgement)
    hostile = r"row 0: a \<b\>\|dog\|\</b\> \`on\` \*a\* \[beach\](x)"
    assert f"| photos/0.jpg | {hostile} | row 1: caption 1 |" in page
    assert "| 0.990 | 0.950 | 90.0% | 2.0% |" in page and "| 0.600 | - | 4.0% |" in page
    assert "| 12 | 0 |" in page
    assert page == report.page(make_audit(), None, ["kept.npy: rows"])


def test_decisions_and_truth_stand_in_the_page_and_in_the_numbers():
    decisions = Decisions(
        *(np.array([1, 2]), np.array(["wrong", "fits"], object), np.array([-1, -1])),
        *(np.array(["list", "review"]), np.array([np.nan, 4.0])),
    )
    truth = np.arange(PAIRS) < 8
    audit = make_audit(train=mismatched_pairs(truth), decisions=decisions)
    rate = ReviewedRate(0.2, 0.1, 0.3, 2)
    page = report.page(audit, rate, [])
    assert {2, 1, 0} <= {*numbers(report.by_eye(decisions, None))}
    assert {20.0, 10.0, 30.0} <= {*numbers(page)}
    found = report.values(audit, rate)["truth"]
    assert found == {"rate": 0.2, "auroc": 1.0, "list_recall": 0.5, "list_false_alarms": 0.0}


def test_the_numbers_are_json_without_nan():
    content = json.loads(report.to_json(report.values(make_audit(), None)))
    assert content["rate"] == {"estimate": 0.108, "low": 0.05, "high": 0.2}
    assert content["kinds"]["swapped_caption"] == 4 and content["conflicts"] == [[0, 1]]
    assert content["mechanisms"][1]["cosine_auroc"] is None
    assert content["settings"]["top"] == 5 and content["inputs"]["digest"] == "0123456789abcdef"
