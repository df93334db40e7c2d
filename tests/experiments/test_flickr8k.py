"""Experiments on Flickr8k: settings, vocabulary and report, from files of finished runs."""

import json
from pathlib import Path

import pytest

from experiments.papers import flickr8k
from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError
from tests.experiments.finished_runs import command, leave_run


def test_flickr8k_settings(tmp_path, trained, monkeypatch, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "train_caps.txt").write_text("a rare dog\n" + "a dog runs\n" * 4)
    command(monkeypatch, flickr8k, "--path", data, "--out", out, "--set", "mismatch.rate=0.6")
    assert trained == ["l2rm-saf-image0.6-seed0"]
    config = json.loads((out / trained[0] / "config.json").read_text())
    assert (config["data"]["train_images"], config["data"]["dev_images"]) == (2000, 200)
    words = json.loads(Path(config["data"]["vocabulary"]).read_text())["word2idx"]
    assert list(words)[4:] == ["a", "dog", "runs"]
    assert "l2rm  saf  image0.6" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--path"):
        command(monkeypatch, flickr8k, "--out", out)


def test_the_vocabulary_is_that_of_the_settings(tmp_path, trained, monkeypatch):
    """Built with what --set says; neither varied nor taken over from other data."""
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    captions = "a rare dog\n" + "a dog runs\n" * 4
    (data / "train_caps.txt").write_text(captions)
    arguments = ("--path", data, "--out", out)
    for key in ("data.min_count=1,4", "data.split_sentences=True,False"):
        with pytest.raises(SystemExit, match=f"--vary {key.split('=')[0]}: .* share a vocabulary"):
            command(monkeypatch, flickr8k, *arguments, "--vary", key)
    assert not trained and not out.exists()
    rare = (*arguments, "--set", "data.min_count=1")
    command(monkeypatch, flickr8k, *rare)
    config = json.loads((out / trained[0] / "config.json").read_text())
    words = json.loads(Path(config["data"]["vocabulary"]).read_text())["word2idx"]
    assert (config["data"]["min_count"], list(words)[4:]) == (1, ["a", "rare", "dog", "runs"])
    del trained[:]
    command(monkeypatch, flickr8k, *rare)  # which is the same again
    with pytest.raises(SystemExit, match=r"vocabulary .* at data\.min_count=4"):
        command(monkeypatch, flickr8k, *arguments)
    (data / "train_caps.txt").write_text(captions + "a cat\n")
    with pytest.raises(SystemExit, match="expected an --out of its own"):
        command(monkeypatch, flickr8k, *rare)
    assert not trained


def test_sentences_are_split_before_the_vocabulary_is_built(tmp_path, trained, monkeypatch):
    (tmp_path / "train_caps.txt").write_text("a dog sits. it runs.\n" * 4)
    monkeypatch.setattr(
        flickr8k,
        "load_sentence_splitter",
        lambda: lambda text: text.replace(". ", ".\n").split("\n"),
    )
    arguments = ("--path", tmp_path, "--out", tmp_path / "out")
    command(monkeypatch, flickr8k, *arguments, "--set", "data.split_sentences=True")
    words = json.loads((tmp_path / "out" / "vocabulary.json").read_text())["word2idx"]
    assert list(words)[4:] == ["a", "dog", "sits", ".", "it", "runs"]


def test_flickr8k_report(tmp_path):
    """Means over finished runs alone; the unfinished and the authors' beside them."""
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
    text = flickr8k.report(tmp_path)
    lines = [line.split() for line in text.splitlines()]
    assert ["l2rm-0", *["40.0"] * 6, "240.0", "2"] in lines
    assert ["l2rm-2", *["20.0"] * 6, "120.0", "2", "(2", "of", "12", "so", "far)"] in lines
    assert [*["mean", "of", "2", "finished"], *["41.7"] * 6, "250.0"] in lines
    assert ["standard", "deviation", *["2.4"] * 6, "14.1"] in lines
    assert ["l2rm-0", "90.0", "240.0", "180.0"] in lines
    assert ["l2rm-1", "0.700", "0.800"] in lines and ["l2rm-1", "0.450", "0.550"] in lines
    assert text.count("authors' code") == 4  # none of them under triplet
    assert lines[-2:] == [
        ["l2rm", "saf", "image0.4", *["83.4"] * 6, "500.5", "2"],
        ["triplet", "saf", "image0.4", *["83.3"] * 6, "500.0", "1"],
    ]
    assert "more than the seed" not in text
    config.method, config.l2rm.rho = "l2rm", 0.5
    leave_run(config, tmp_path / "l2rm-rho", [40.0], True)
    text = flickr8k.report(tmp_path)
    assert "no mean: the runs differ in more than the seed" in text and "of 2 fin" not in text
    assert text.splitlines()[-1].startswith("triplet") and "\nl2rm  saf" not in text
    with pytest.raises(ConfigError, match="no run has finished an epoch"):
        flickr8k.report(tmp_path / "elsewhere")
