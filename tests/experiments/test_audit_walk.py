"""The walk from the audit to a model: what the reviewer decides, the runs, and their rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.judging import audit_walk
from l2rm_jax.audit.review import check_sample, draw_review, read_decisions, reviewed_rate
from tests.experiments.finished_runs import leave_run


def test_the_reviewer_says_what_is_true_in_the_format_of_the_page(tmp_path):
    rng = np.random.default_rng(0)
    posterior = rng.random(2000) ** 3
    wrong = rng.random(2000) < posterior
    review, weight = draw_review(posterior, seed=0)
    listed = np.setdiff1d(np.argsort(-posterior)[:30], review)
    file = tmp_path / "decisions.csv"
    file.write_text(audit_walk.decision_lines(wrong, review, weight, listed))
    read = read_decisions(file, 2000)
    assert (np.diff(read.row) > 0).all()
    assert set(read.row) == {*review, *listed} and set(read.row[read.is_review]) == set(review)
    np.testing.assert_array_equal(read.decision == "wrong", wrong[read.row])
    check_sample(read, review, weight)
    rate = reviewed_rate(read, weight)
    assert rate.estimate == pytest.approx(weight @ wrong[review] / 2000)
    assert rate.low < wrong.mean() < rate.high and rate.pairs == 100


def make_walk(out, kept):
    """An audit of seed 1, with scores that keep a share of the pairs."""
    audited = out / "reviewed-seed1"
    audited.mkdir(parents=True)
    scores = np.linspace(0, 1, 1001)[1:] ** (np.log(0.5) / np.log(1 - kept))
    np.save(audited / "scores.npy", scores)
    rates = {"estimate": 0.41234, "low": 0.38, "high": 0.44}
    report = {"rate": rates, "reviewed_rate": rates, "truth": {"rate": 0.3995}}
    (audited / "report.json").write_text(json.dumps(report))
    return scores


def test_runs_differ_in_the_filter_and_train_as_often(tmp_path):
    scores = make_walk(tmp_path, kept=0.5)
    assert (scores >= 0.5).mean() == pytest.approx(0.5, abs=0.01)
    name, config = audit_walk.named_run(Path("DIR"), tmp_path, 1, "kept")
    assert name == "kept-infonce-aggregate-image0.4-seed1"
    data = config.data
    assert (data.filter, data.filter_value) == ("score", 0.5)
    assert data.filter_scores == str(tmp_path / "reviewed-seed1" / "scores.npy")
    other, whole = audit_walk.named_run(Path("DIR"), tmp_path, 1, "all")
    assert other == "all-infonce-aggregate-image0.4-seed1" and whole.data.filter == "none"
    assert (whole.data.train_images, whole.mismatch.seed) == (2000, 1)
    epochs = [each.train.warmup_epochs + each.train.epochs for each in (config, whole)]
    assert epochs[0] == pytest.approx(2 * epochs[1], abs=1)


def test_rows_of_finished_runs(tmp_path):
    make_walk(tmp_path, kept=0.5)
    name, config = audit_walk.named_run(Path("DIR"), tmp_path, 1, "all")
    leave_run(config.copy_and_resolve_references(), tmp_path / name, [100.0, 300.0, 200.0])
    [row] = audit_walk.finished(tmp_path, [0, 1])
    assert row == {
        "use": "all",
        "seed": 1,
        "true": 0.4,
        "rate": 0.412,
        "by_eye": 0.412,
        "eye_low": 0.38,
        "eye_high": 0.44,
        "kept": 1.0,
        "left": 0.39,
        "i2t_r1": 83.5,
        "t2i_r1": 83.5,
        "validation": 300.0,
        "test": 501.0,
    }
