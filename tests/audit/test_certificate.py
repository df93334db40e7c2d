"""Certificates of kept pairs: tests, draws, promises that hold, and an audit that gives one."""

import json
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from l2rm_jax import open_audit
from l2rm_jax.audit.audit import Settings
from l2rm_jax.audit.certificate import (
    Certificate,
    certificate_sentence,
    certify,
    check_size,
    draw_sample,
    fewest_decisions,
    goal_sentence,
    nested_sizes,
)
from l2rm_jax.audit.command import CANNOT_TELL, exit_status
from l2rm_jax.audit.review import Decisions
from l2rm_jax.errors import ConfigError
from tests.audit.made import PAIRS, make_audit


def by_hand(ranked, rows, wrong, share):
    """Size of the certified set, by sums of binomial probabilities."""
    size = 0
    for twentieths in range(10, 21):
        inside = set(ranked[: -(-len(ranked) * twentieths // 20)])
        own = [bad for row, bad in zip(rows, wrong, strict=True) if row in inside]
        n = len(own)
        tail = sum(comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(sum(own) + 1))
        if tail > 0.1:
            return size
        size = len(inside)
    return size


def test_tests_agree_with_brute_force_and_exact_risk_is_below_a_tenth():
    """All samples of 8 of 12 kept pairs; 5 other pairs of the review do not matter."""
    rng = np.random.default_rng(0)
    pairs = rng.permutation(17)
    ranked, others = pairs[:12], pairs[12:]
    samples = [np.append(rows, others) for rows in combinations(ranked.tolist(), 8)]
    certified = 0
    for least, share in product((2, 5, 8), (0.4, 0.5)):
        wrong = np.zeros(17, bool)
        wrong[ranked[least:]] = rng.random(12 - least) < 0.8
        wrong[others] = True
        broken = 0
        for rows in samples:
            size = certify(ranked, rows, wrong[rows], share).pairs
            broken += size > 0 and wrong[ranked[:size]].mean() > share
            certified += size > 0
        assert broken / len(samples) <= 0.1
        for rows in samples[:: len(samples) // 20]:
            found = certify(ranked, rows, wrong[rows], share)
            assert found.pairs == by_hand(ranked.tolist(), rows.tolist(), wrong[rows], share)
            assert found.decided == 8
    assert certified > 500


def test_each_size_that_can_pass_needs_its_fewest_decisions():
    assert [*map(fewest_decisions, (0.1, 0.05, 0.02, 0.01))] == [22, 45, 114, 230]
    assert nested_sizes(1001).tolist()[:2] + nested_sizes(1001).tolist()[-1:] == [501, 551, 1001]
    ranked, right = np.arange(200), np.zeros(90, bool)
    for decided, size in ((44, 0), (45, 100)):
        rows = np.append(np.arange(decided), np.arange(200, 290 - decided))
        assert certify(ranked, rows, right, 0.05).pairs == (size and 200)
    half = certify(ranked, np.arange(50), np.arange(50) == 3, 0.05)
    assert (half.pairs, half.half_decided, half.half_wrong) == (0, 50, 1)
    # At this share, one wrong pair or none of 50 have a probability of a tenth.
    share = half.half_at_most
    assert (1 - share) ** 50 + 50 * share * (1 - share) ** 49 == pytest.approx(0.1)


def test_a_review_that_is_too_small_is_refused():
    check_size(1, 0.0)
    check_size(120, 0.05)
    with pytest.raises(ConfigError, match=r"audit\.decide: found 119, expected at least 120 .*05"):
        check_size(119, 0.05)


@pytest.mark.parametrize("n", [120, 200])
def test_the_sample_is_uniform_and_has_enough_pairs_of_the_half(n):
    rng = np.random.default_rng(1)
    ranked = rng.permutation(1000)[:800]
    drawn, halves = np.zeros(1000), []
    for seed in range(300):
        rows, weight = draw_sample(ranked, 1000, n, 0.05, seed)
        is_kept = np.isin(rows, ranked)
        assert len(np.unique(rows)) == len(rows) and (~is_kept).sum() == n // 4
        assert weight[is_kept].sum() == pytest.approx(800)
        assert weight[~is_kept].sum() == pytest.approx(200)
        half = np.isin(rows, ranked[:400]).sum()
        assert half >= 45 and (is_kept.sum() == 3 * n // 4 or half == 45)
        drawn[rows] += weight
        halves.append(half / is_kept.sum())
    np.testing.assert_array_equal(rows, draw_sample(ranked, 1000, n, 0.05, seed)[0])
    assert abs(np.mean(halves) - 0.5) < 4 * np.std(halves) / np.sqrt(300)
    np.testing.assert_allclose(drawn[ranked[:400]].mean() / 300, 1, atol=0.02)
    few, weight = draw_sample(np.arange(30), 30, n, 0.05, 0)
    assert sorted(few) == list(range(30)) and (weight == 1).all()


@pytest.mark.parametrize("share", [0.05, 0.1])
def test_at_least_nine_of_ten_certificates_hold(share):
    """400 reviews, in which a set of two thirds has slightly more wrong pairs than promised."""
    rng = np.random.default_rng(2)
    ranked = rng.permutation(3000)
    wrong = np.zeros(3000, bool)
    for part, (first, last) in ((0.9, (0, 2000)), (2.5, (2000, 3000))):
        wrong[ranked[first:last]] = rng.random(last - first) < part * share
    true = np.cumsum(wrong[ranked]) / np.arange(1, 3001)
    held, given = 0, 0
    for seed in range(400):
        rows, _ = draw_sample(ranked, 3000, 400, share, seed)
        size = certify(ranked, rows, wrong[rows], share).pairs
        held += size == 0 or true[size - 1] <= share
        given += size > 0
    assert held / 400 >= 0.88 and given > 20


def test_sentences_have_the_numbers():
    ranked = np.arange(1000)
    rows, _ = draw_sample(ranked, 1200, 200, 0.05, 0)
    half, kept = np.count_nonzero(rows < 500), np.count_nonzero(rows < 1000)
    goal = goal_sentence(ranked, rows, 0.05)
    assert all(f"{n} " in goal for n in (half, kept, 90)) and "5%" in goal
    assert "impossible" in goal_sentence(ranked[:40], ranked[:40], 0.05)
    given = certificate_sentence(Certificate(0.05, 900, 150, 80, 1, 0.048), 898, "model 2.1")
    assert "5%" in given and "898" in given and "150" in given and "by model 2.1" in given
    missing = certificate_sentence(Certificate(0.05, 0, 150, 80, 9, 0.171), 0, "eye")
    assert "9 of 80" in missing and "18%" in missing


def decided(audit, wrong=(), unsure=(), without=0):
    """The audit with the whole review decided, or without its first pairs."""
    rows, weight = (each[without:] for each in audit.drawn())
    words = np.where(np.isin(rows, wrong), "wrong", "fits").astype(object)
    words[np.isin(rows, unsure)] = "unsure"
    doors, taken = np.full(len(rows), "review", object), np.full(len(rows), -1)
    return make_audit(
        settings=audit.settings, decisions=Decisions(rows, words, taken, doors, weight)
    )


def test_an_audit_certifies_kept_pairs_without_those_found_to_be_wrong(tmp_path):
    settings = Settings(decide=24, certify=0.4)
    asked = make_audit(settings=settings)
    rows, _ = asked.drawn()
    kept = rows[rows >= 5]  # the first five are suspicious
    assert len(kept) >= 18 and asked.certificate is None and not len(asked.certified())
    assert asked.verdict()[-1] == asked.promise != ""
    assert make_audit().promise == "" and exit_status(asked) == 0
    unfinished = decided(asked, without=1)
    assert unfinished.certificate is None and exit_status(unfinished) == 0
    right = decided(asked, wrong=kept[:1])
    assert right.certificate.pairs == 35 and exit_status(right) == 0
    expected = np.setdiff1d(np.arange(5, PAIRS), kept[:1])
    np.testing.assert_array_equal(right.certified(), expected)
    for field in ("wrong", "unsure"):
        failed = decided(asked, **{field: kept})
        assert not failed.certificate.pairs and exit_status(failed) == CANNOT_TELL
        assert failed.verdict()[-1] == failed.promise
    out, other = right.write(tmp_path / "out"), failed.write(tmp_path / "failed")
    np.testing.assert_array_equal(np.load(out / "certified.npy"), expected)
    assert not (other / "certified.npy").exists()
    for directory, audit in ((out, right), (other, failed)):
        report = json.loads((directory / "report.json").read_text())
        assert report["certificate"] == audit.certificate._asdict()
        assert audit.promise in report["verdict"]
        again = open_audit(directory)
        assert (again.promise, again.reviewed()) == (audit.promise, audit.reviewed())
        np.testing.assert_array_equal(again.certified(), audit.certified())
        np.testing.assert_array_equal(again.kept(), audit.kept())
