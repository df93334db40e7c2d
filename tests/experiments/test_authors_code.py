"""Runs on Flickr8k beside the authors' code, and the vocabulary that both have."""

import json

import pytest

from experiments.papers import authors_code, vocabulary
from l2rm_jax import config as defaults
from tests.experiments.finished_runs import command, leave_run


def test_finished_runs_beside_the_authors_code(tmp_path, monkeypatch, capsys):
    """Other methods, rates and unfinished runs are left out."""
    runs = [
        ("l2rm", 0, [90.0, 240.0, 180.0], True),
        ("l2rm", 1, [90.0, 252.0, 260.0], True),
        ("l2rm", 2, [60.0, 120.0], False),
        ("triplet", 0, [30.0], True),
    ]
    for method, seed, validation, finished in runs:
        config = defaults.get_config("long")
        config.method, config.seed = method, seed
        leave_run(config, tmp_path / f"{method}-{seed}", validation, finished)
    command(monkeypatch, authors_code, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    for line in (
        ["l2rm-0", *["40.0"] * 6, "240.0"],
        ["mean", *["41.7"] * 6, "250.0"],
        ["standard deviation", *["2.4"] * 6, "14.1"],
        ["the authors' code", "22.5", "49.0", "61.5", "14.2", "36.3", "48.7", "232.2"],
        ["1", "90.0", "", "", ""],
        ["2", "246.0", "150", "0.700", "0.450"],
        ["3", "220.0", "190", "0.800", "0.550"],
    ):
        assert f"| {' | '.join(line)} |" in lines
    with pytest.raises(SystemExit, match=r"no run of l2rm, saf, image0\.4 has finished"):
        command(monkeypatch, authors_code, tmp_path / "triplet-0")


def test_the_vocabulary_of_all_training_captions(tmp_path, monkeypatch, capsys):
    (tmp_path / "train_caps.txt").write_text("a rare dog\n" + "a dog runs\n" * 4)
    out = tmp_path / "vocabulary.json"
    command(monkeypatch, vocabulary, tmp_path, "--out", out)
    assert [*json.loads(out.read_text())["word2idx"]][4:] == ["a", "dog", "runs"]
    command(monkeypatch, vocabulary, tmp_path, "--out", out, "--min_count", "1")
    assert "8 words" in capsys.readouterr().out
