"""The trained scorer: `run/test_detector.py` tests the runs, and here is what they are asked."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from l2rm_jax.audit.canonical import Order
from l2rm_jax.audit.trained import check_scorer, scorer_config, trained_models, trained_scorer

from l2rm_jax import config as defaults
from l2rm_jax.audit import trained
from l2rm_jax.audit.inputs import Settings
from l2rm_jax.data.loading import load_data
from l2rm_jax.errors import ConfigError, DataError, StoppedError
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.detector import fold_config
from l2rm_jax.run.inputs import check_settings
from l2rm_jax.run.judgement import image_folds, pairs_outside_fold

SETTINGS = Settings(scorer="infonce-vse", folds=3, seed=4)
FOLDS = np.arange(30) % 3


@pytest.fixture(scope="module")
def config():
    config = defaults.get_config("quick")
    config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 30, 10, 6
    config.train.batch_size, config.mismatch.rate = 20, 0.3
    return config


def test_each_fold_has_a_run_of_the_others_which_is_open_until_the_next(
    config, tmp_path, monkeypatch
):
    ran, closed = [], []

    @contextmanager
    def fold_run(own, data, fold, **rest):
        ran.append((fold_config(own, fold), data, rest))
        yield fold
        closed.append(fold)

    monkeypatch.setattr(trained, "fold_run", fold_run)
    monkeypatch.setattr(trained, "fold_similarity", lambda run, pairs, part: (run, len(part)))
    filtered = with_changes(config, {"data.filter": "truth", "split.by": "crossfit"})
    with trained_models(filtered, SETTINGS, FOLDS, tmp_path / "runs") as model_of:
        assert model_of(2, np.arange(5)) == (2, 5) and closed == []
        assert model_of(0, np.arange(7)) == (0, 7) and closed == [2]
    assert closed == [2, 0]
    run, data, rest = ran[0]
    check_settings(run)
    assert len(data.train) == 150 and not data.train.matched.all()  # all, as they are stored
    assert rest["workdir"] == tmp_path / "runs" and rest["train"] is trained.train
    assert (run.method, run.model.head, run.seed) == ("infonce", "vse", 4)
    assert (run.split.folds, run.split.held_out, run.split.by) == (3, 2, "loss")
    assert run.mismatch == config.mismatch and run.train.epochs == config.train.epochs
    outside = pairs_outside_fold(run.split, data.train)
    np.testing.assert_array_equal(outside, np.flatnonzero(FOLDS[data.train.stored_image] != 2))


def test_the_scorer_speaks_of_rows_in_another_order(config, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    order = Order(rng.permutation(30), rng.permutation(150), np.zeros(150, int), 150)
    asked = []

    @contextmanager
    def models(own, settings, image_fold, workdir):
        asked.append(image_fold)
        yield lambda fold, pairs: (asked.append(pairs) or (lambda i, c: (i, c)), 0.5)

    monkeypatch.setattr(trained, "trained_models", models)
    inputs = SimpleNamespace(config=config, images=np.zeros((30, 1)))
    with trained_scorer(inputs, SETTINGS, order, FOLDS[order.images], tmp_path) as scorer:
        similarity, temperature = scorer.model_of(1, np.array([3, 5]))
        images, captions = similarity(np.array([2]), np.array([5, 3]))
    assert scorer.name == "infonce-vse" and temperature == 0.5
    np.testing.assert_array_equal(asked[0], FOLDS)
    np.testing.assert_array_equal(asked[1], np.sort(order.pairs[[3, 5]]))
    assert images == order.images[2] and (captions == order.pairs[[5, 3]]).all()


def test_folds_that_do_not_fit_are_refused(config, tmp_path):
    train = load_data(config.data, config.mismatch, workdir=None).train
    np.save(tmp_path / "f.npy", FOLDS)
    split = scorer_config(config, SETTINGS, str(tmp_path / "f.npy")).split
    np.testing.assert_array_equal(image_folds(split, train), FOLDS)
    for wrong in (FOLDS[:-1], FOLDS + 1):
        np.save(tmp_path / "f.npy", wrong)
        with pytest.raises(DataError, match="expected the fold of each of the 30 images, 0 to 2"):
            image_folds(split, train)


def test_a_stopped_scorer_says_how_to_go_on(config, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise StoppedError("stopped at epoch 1. Continue: l2rm --workdir=x", 15, "epoch 1; saved")

    monkeypatch.setattr(trained, "train", stop)
    with (
        trained_models(config, SETTINGS, FOLDS, tmp_path / "runs") as model_of,
        pytest.raises(StoppedError, match=r"fold 1 of 3, epoch 1; saved\. Continue: the same"),
    ):
        model_of(0, np.arange(5))


def test_scorers_are_checked(config):
    check_scorer(config, Settings())
    check_scorer(config, SETTINGS)
    assert scorer_config(config, SETTINGS).split.detector == "infonce-vse"
    with pytest.raises(ConfigError, match=r"config\.audit\.scorer: 'vse', expected linear, or"):
        check_scorer(config, Settings(scorer="vse"))
    with pytest.raises(ConfigError, match=r"audit\.scorer=rcsl-vse: method: rcsl needs known"):
        check_scorer(config, Settings(scorer="rcsl-vse"))
