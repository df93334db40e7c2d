"""The comparison of audits: its mismatch, its scores against plain formulas, and a whole cell."""

import numpy as np
import pytest

from experiments.judging import audit
from experiments.judging.audit import Cell, Vectors
from experiments.script import write_rows
from tests.judging.synthetic import make_pairs


@pytest.fixture(scope="module")
def vectors():
    images, captions, stored, _ = make_pairs(150, 5, 0.0)
    return Vectors(images, {"tfidf": captions}, stored, [""] * len(stored))


def test_ranked_against_plain_counts():
    score = np.array([0.9, 0.8, 0.7, 0.1])
    wrong = np.array([True, False, True, False])
    row = audit.ranked(score, wrong)
    assert row["auroc"] == "0.7500" and row["precision"] == "0.5000"
    assert row["average_precision"] == f"{(1 + 2 / 3) / 2:.4f}"


def test_lemon_finds_swapped_pairs(vectors):
    images, captions = vectors.images, vectors.captions["tfidf"]
    own = vectors.caption_image.copy()
    own[:50] = np.roll(own[:50], 25)
    similarity = np.where(own == vectors.caption_image, 0.8, 0.1)
    score = audit.lemon_score(images, captions, own, similarity)
    assert score[own != vectors.caption_image].mean() > score.mean()


@pytest.mark.slow
def test_a_cell_and_what_it_keeps(vectors, tmp_path):
    rows = audit.measure(Cell("tfidf", 5, "caption", 0.2, 0), vectors, top=2, detector="lemon")
    assert [row["score"] for row in rows] == ["audit", "audit by lemon", "cosine", "information"]
    for row in rows[:2]:
        assert float(row["auroc"]) > 0.95
        assert 0.1 < float(row["rate"]) < 0.3
    assert rows[0]["auroc"] != rows[1]["auroc"]
    assert 0 <= float(rows[0]["proposal_first"]) <= 1
    write_rows(tmp_path / "rows.csv", rows)
    assert audit.read_rows(tmp_path / "rows.csv")[1]["auroc"] == rows[1]["auroc"]
