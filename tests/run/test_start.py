"""Runs that start from the model of another run, and weigh their pairs by it."""

import shutil

import jax
import numpy as np
import pytest

from l2rm_jax.errors import ConfigError
from l2rm_jax.losses import osa
from l2rm_jax.methods.pair_weights import SCORE
from l2rm_jax.run.load_trained import START_FILE, read_trained
from l2rm_jax.train import train
from tests.run.tiny_runs import one_device
from tests.tiny import tiny_config, write_vectors

pytestmark = pytest.mark.usefixtures("shared_programs")
TRAIN = {"warmup_epochs": 0, "epochs": 1}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Directory of the data, and of a finished run on them."""
    root = tmp_path_factory.mktemp("start")
    write_vectors(root / "data", train=20)
    config = of_data(root / "data")
    train(config, root / "first", one_device())
    return root


def of_data(path, method="infonce", **changes):
    changes = {"data.path": str(path), "data.name": "vectors", **changes}
    return tiny_config(method, "vse", changes, **TRAIN)


@pytest.mark.slow
def test_a_run_starts_from_the_best_model_and_weighs_by_it(started, tmp_path):
    """The first model scores the pairs; the run keeps a copy of it in its directory."""
    shutil.copytree(started / "first", tmp_path / "first")
    changes = {"model.start": str(tmp_path / "first"), "train.weight": "start"}
    config = of_data(started / "data", **changes, **{"optim.learning_rate": 1e-12})
    seen = {}

    def keep(run, epoch, recalls):
        seen["scores"] = np.asarray(run.replicas.unreplicate(run.state).own["pairs"][SCORE])
        seen["sims"], train = run.score(run.data.train), run.data.train
        seen["own"] = seen["sims"][train.stored_image, np.arange(len(train))]

    train(config, tmp_path / "run", one_device(), on_epoch=keep)
    first, last = read_trained(started / "first").state, read_trained(tmp_path / "run").state
    for one, other in zip(jax.tree.leaves(first.params), jax.tree.leaves(last.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)
    # The threshold is one number, the mean over the other captions of the batches.
    threshold = seen["own"] - seen["scores"]
    np.testing.assert_allclose(threshold, threshold[0], atol=1e-5)
    assert threshold[0] == pytest.approx(seen["sims"].mean(), abs=0.1)
    assert seen["scores"].shape == (100,) and float(osa(seen["scores"]).max()) > 0
    assert (tmp_path / "run" / START_FILE).exists()
    shutil.rmtree(tmp_path / "first")  # the run has its own copy
    more = of_data(started / "data", **changes)
    more.train.epochs, more.optim.learning_rate = 2, 1e-12
    results = train(more, tmp_path / "run", one_device())
    assert results["rsum"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.embed_dim": 4}, r"model.start: found \[.*8\] for params/.*, expected \[.*4\]"),
        ({"model.start": "nowhere"}, "nowhere"),
    ],
)
def test_models_that_do_not_fit(started, tmp_path, changes, message):
    config = of_data(started / "data", **{"model.start": str(started / "first"), **changes})
    with pytest.raises(ConfigError, match=message):
        train(config, tmp_path / "run", one_device())


@pytest.mark.slow
def test_another_vocabulary_is_an_error(started, tmp_path):
    words = tiny_config("infonce", "vse", **TRAIN)
    train(words, tmp_path / "words", one_device())
    words.data.min_count, words.model.start = 1, str(tmp_path / "words")
    with pytest.raises(ConfigError, match="another vocabulary; set data"):
        train(words, tmp_path / "run", one_device())
