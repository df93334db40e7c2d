"""The script that measures certificates: reviews of made pairs, and the rows of its summary."""

import numpy as np
import pytest

from experiments.judging import certificate


def test_reviews_of_pairs_that_are_ranked_by_the_truth(monkeypatch):
    monkeypatch.setattr(certificate, "REVIEWS", 20)
    rng = np.random.default_rng(0)
    pairs = rng.permutation(1000)
    wrong = np.zeros(1000, bool)
    wrong[pairs[700:]] = True
    found = certificate.reviews(pairs[:700], wrong, 0.05, 200)
    numbers = {name: float(value) for name, value in found.items()}
    assert numbers["possible"] == numbers["certified"] == 0.7
    assert numbers["given"] == numbers["holds"] == 1 and numbers["wrong"] == 0
    all_kept = certificate.reviews(pairs, wrong, 0.05, 200)
    assert float(all_kept["possible"]) == pytest.approx(700 / 0.95 / 1000, abs=0.001)
    assert 0.5 < float(all_kept["certified"]) < 0.75


def test_the_summary_has_means_over_the_seeds_and_the_least_coverage():
    row = {"protocol": "hard", "rate": 0.2, "possible": "0.5"}
    rows = [
        row
        | {"seed": seed, "share": share, "decide": decide, "certified": seed / 2, "holds": holds}
        for share, sizes in certificate.ASKED.items()
        for decide in sizes
        for seed, holds in ((0, 0.95), (1, 0.93))
    ]
    [found] = certificate.summary(rows)
    assert (found["protocol"], found["audits"], found["possible at 5%"]) == ("hard", 2, "0.50")
    assert found["5%: 267"] == found["2%: 304"] == "0.25"
    assert found["holds"] == "0.93"
