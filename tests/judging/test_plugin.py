"""The detector that the page shows: it judges in training and in an audit."""

import jax
import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.auroc import auroc
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.judging import read_judgement
from l2rm_jax.run.config_file import load_config, with_changes
from l2rm_jax.train import train
from tests.tiny import tiny_config, write_vectors


@pytest.mark.slow
def test_a_plugged_in_detector_judges_for_training_and_for_an_audit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = load_config("scenes:quick", plugins=["tests.plugins.lemon"])
    tiny = tiny_config("infonce", "vse", warmup_epochs=0, epochs=1, draw="judgement")
    changes = {
        "method": "infonce",
        "model.head": "vse",
        "model.embed_dim": tiny.model.embed_dim,
        "train.batch_size": 20,
        "train.warmup_epochs": 0,
        "train.epochs": 1,
        "train.draw": "judgement",
        "data.name": "vectors",
        "data.path": str(write_vectors(tmp_path / "data", train=60)),
        "judgement.detector": "lemon",
    }
    config = with_changes(base, changes)
    train(config, tmp_path / "run", Replicas(jax.devices()[:1]))
    own = read_judgement(tmp_path / "run" / "judgement.npz")
    assert own.made.detector == own.made.by == "lemon"
    line = "audit --data=data --out=audit --config.plugins=tests.plugins.lemon"
    try:
        main.main(
            [*line.split(), "--config.judgement.detector=lemon", "--config.mismatch.rate=0.4"]
        )
    except SystemExit as error:
        assert error.code in (0, None)
    found = read_judgement(tmp_path / "audit" / "judgement.npz")
    assert found.made.by == "lemon"
    assert auroc(found.posterior, found.image_of != np.arange(300) // 5) > 0.85
