"""The trained scorer: `run/test_detector.py` tests the runs, and here is what they are asked."""

import pytest

from l2rm_jax import config as defaults
from l2rm_jax.audit import trained
from l2rm_jax.audit.inputs import Settings
from l2rm_jax.audit.trained import check_scorer, scorer_config, trained_evidence
from l2rm_jax.errors import ConfigError, StoppedError
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.detector import fold_config
from l2rm_jax.run.inputs import check_settings

SETTINGS = Settings(scorer="infonce-vse", folds=3, seed=4)


@pytest.fixture(scope="module")
def config():
    config = defaults.get_config("quick")
    config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 30, 10, 6
    config.train.batch_size, config.mismatch.rate = 20, 0.3
    return config


def test_the_runs_take_all_pairs_as_they_are_stored(config, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        trained, "evidence_by_runs", lambda own, data, **rest: asked.append((own, data, rest))
    )
    filtered = with_changes(config, {"data.filter": "truth", "split.by": "crossfit"})
    trained_evidence(filtered, SETTINGS, tmp_path)
    [(own, data, rest)] = asked
    assert len(data.train) == 150 and not data.train.matched.all()
    assert rest["workdir"] == tmp_path and rest["epoch"] == 0 and rest["train"] is trained.train
    run = fold_config(own, 2)
    check_settings(run)
    assert (run.method, run.model.head, run.seed) == ("infonce", "vse", 4)
    assert (run.split.folds, run.split.held_out, run.split.by) == (3, 2, "loss")
    assert run.mismatch == config.mismatch and run.train.epochs == config.train.epochs


def test_a_stopped_scorer_says_how_to_go_on(config, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise StoppedError("stopped at epoch 1. Continue: l2rm --workdir=x", 15, "epoch 1; saved")

    monkeypatch.setattr(trained, "train", stop)
    with pytest.raises(StoppedError, match=r"fold 1 of 3, epoch 1; saved\. Continue: the same"):
        trained_evidence(config, SETTINGS, tmp_path / "runs")


def test_scorers_are_checked(config):
    check_scorer(config, Settings())
    check_scorer(config, SETTINGS)
    assert scorer_config(config, SETTINGS).split.detector == "infonce-vse"
    with pytest.raises(ConfigError, match=r"config\.audit\.scorer: 'vse', expected linear, or"):
        check_scorer(config, Settings(scorer="vse"))
    with pytest.raises(ConfigError, match=r"config\.audit\.folds: 0, expected 3 to 100"):
        check_scorer(config, SETTINGS._replace(folds=0))
    with pytest.raises(ConfigError, match=r"audit\.scorer=rcsl-vse: method: rcsl needs known"):
        check_scorer(config, Settings(scorer="rcsl-vse"))
