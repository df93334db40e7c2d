"""Variants of heads: their report, and the time of matching."""

import json

import pytest

from experiments.papers import heads
from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError
from l2rm_jax.models.vse import VSE
from tests.experiments.finished_runs import command


def test_heads_are_trained_by_variant_and_reported(tmp_path, trained, monkeypatch, capsys):
    monkeypatch.setattr(heads, "matching_seconds", lambda model: 1.25)
    arguments = ("--path", tmp_path, "--out", tmp_path / "runs", "--only", "margins")
    command(monkeypatch, heads, *arguments, "--vary", "seed=0,2")
    assert trained[:2] == [f"intra--triplet-omit-image0-seed{seed}" for seed in (0, 2)]
    assert len(trained) == 6
    config = json.loads((tmp_path / "runs" / trained[-1] / "config.json").read_text())
    assert config["model"]["margins"] == "norm" and config["model"]["region_mask"] == 0.2
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["intra", "inter", "norm"]
    assert lines[-1].split()[-4:] == ["501.0", "1.4", "2", "1.25"]
    with pytest.raises(ConfigError, match="no run has finished"):
        heads.report(tmp_path / "elsewhere")
    # Runs that differ in more than the seed are rows of their own.
    more = ("--vary", "seed=4,6", "--set", "train.batch_size=32")
    command(monkeypatch, heads, *arguments, "--vary", "train.batch_size=32", *more)
    lines = {line[:-100].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    for size, rsum in ((64, "501.0"), (32, "505.0")):
        found = lines[f"norm, train.batch_size={size}"]
        assert found[-4:] == [rsum, "1.4", "2", "1.25"]


@pytest.fixture
def small_sizes(monkeypatch):
    sizes = {"TILE": 2, "IMAGES": 4, "CAPTIONS": 6, "REGIONS": 3, "FEATURES": 4, "WORDS": 3}
    for name, value in sizes.items():
        monkeypatch.setattr(heads, name, value)


@pytest.mark.parametrize("head", ["omit", "vse"])
def test_matching_is_timed(small_sizes, head):
    config = defaults.default()
    config.model.update(head=head, embed_dim=4, word_dim=3)
    assert 0 < heads.matching_seconds(config.to_dict()) < 5


def test_one_product_is_timed_as_one(small_sizes, monkeypatch):
    """Each image and each caption is pooled once, not once for each tile of the other side."""
    calls = []
    score = VSE.__call__

    def counted(self, *inputs):
        calls.append(inputs)
        return score(self, *inputs)

    monkeypatch.setattr(VSE, "__call__", counted)
    config = defaults.default()
    config.model.update(head="vse", embed_dim=4, word_dim=3)
    heads.matching_seconds(config.to_dict())
    assert len(calls) == 1  # to initialise the model
