"""Test the method `focal`: its loss against a loop, its setting, and two steps of training."""

import json
from itertools import permutations

import numpy as np
import pytest

from l2rm_jax.config import default
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.example.focal import focal_triplet, make_focal
from l2rm_jax.run.config_file import load_config, with_changes
from l2rm_jax.train import train

PLUGINS = ["l2rm_jax.methods.example.focal"]
SMALL = {
    "method": "focal",
    "model.head": "vse",
    "model.embed_dim": 8,
    "model.word_dim": 6,
    "data.scenes_train": 4,  # pictures with five captions each
    "data.scenes_dev": 2,
    "data.scenes_test": 2,
    "train.batch_size": 10,
    "train.warmup_epochs": 0,
    "train.epochs": 1,
    "train.log_steps": 1,
}


def test_loss_equals_a_loop():
    sims = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    expected = 0.0
    for image, caption in permutations(range(4), 2):
        for matched in (sims[image, image], sims[caption, caption]):
            expected += max(0.0, 0.2 + sims[image, caption] - matched) ** 1.5 / 4
    np.testing.assert_allclose(focal_triplet(sims, margin=0.2, gamma=1.5), expected, rtol=1e-5)


def test_setting_is_checked():
    config = default(PLUGINS)
    config.own.gamma = -1.0
    with pytest.raises(ConfigError, match=r"own\.gamma"):
        make_focal(None, config)


def test_two_steps_of_training(tmp_path):
    train(with_changes(load_config("scenes:quick", PLUGINS), SMALL), tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    steps = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    assert [record["step"] for record in steps] == [1, 2]
    assert all(record["loss"] > 0 for record in steps)
