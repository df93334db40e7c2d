"""The trained detector: runs that judge the fold that they have not seen."""

import os
import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from l2rm_jax.data.loading import load_data
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, DataError, StoppedError
from l2rm_jax.judging import judge_pairs, read_judgement
from l2rm_jax.models.retrieval import RetrievalModel
from l2rm_jax.run import detector, inputs
from l2rm_jax.run.config_file import read_config, with_changes
from l2rm_jax.run.detector import open_detector
from l2rm_jax.run.fold_runs import fold_config, judged_epoch
from l2rm_jax.run.initialise import open_run
from l2rm_jax.run.inputs import check_settings
from l2rm_jax.run.judgement import judge_data
from l2rm_jax.run.run import Run
from l2rm_jax.train import train
from tests.run.tiny_runs import records
from tests.tiny import tiny_config, write_vectors

pytestmark = pytest.mark.usefixtures("few_draws", "shared_programs")
FOLDS, EPOCHS = 3, 2
IMAGES = 100  # enough for pairs that can be ranked without a fold
PAIRS = 5 * IMAGES


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    config = tiny_config("infonce", "linear", warmup_epochs=0, epochs=EPOCHS, draw="judgement")
    config.data.name = "vectors"
    config.data.path = str(write_vectors(tmp_path_factory.mktemp("data"), train=IMAGES, dev=20))
    config.optim.learning_rate = 5e-3  # the second epoch improves the first
    config.judgement.folds = FOLDS
    config.judgement.detector, config.judgement.every = "infonce-linear", 1
    return config


@pytest.fixture(scope="module")
def data(config):
    return load_data(config.data, config.mismatch, workdir=None)


@pytest.fixture(scope="module")
def devices():
    return Replicas(jax.devices()[:1])


@pytest.fixture(scope="module")
def whole(config, devices, tmp_path_factory):
    """Work directory of a run whose pairs were judged before each of its two epochs."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    train(config, workdir, devices)
    return workdir


def judgement(workdir: Path, epoch: int) -> bytes:
    return (workdir / ("judgement.npz" if epoch == 0 else f"judgement-{epoch}.npz")).read_bytes()


def epochs_of(workdir: Path) -> list[dict]:
    return [record for record in records(workdir) if record["kind"] == "epoch"]


@pytest.mark.slow
def test_the_pairs_are_judged_before_each_epoch_by_runs_an_epoch_ahead(whole, config, data):
    files = [whole / name for name in ("judgement.npz", "judgement-1.npz")]
    first, second = map(read_judgement, files)
    for found in (first, second):
        assert found.made.detector == "infonce-linear" and len(found) == PAIRS
        assert len(np.unique(found.fold)) == FOLDS
    for fold in range(FOLDS):
        run = whole / "judgement" / f"fold-{fold}"
        assert read_config(run) == fold_config(config, whole, fold, epoch=1)
        assert [record["epoch"] for record in epochs_of(run)] == [1, 2]
    log = records(whole)
    assert Counter(record["kind"] for record in log)["judgement"] == 2
    for epoch, found in enumerate((first, second)):
        chance = np.random.default_rng([config.seed, epoch]).random(PAIRS)
        batches = np.sum(chance < 1 - found.posterior) // 20
        [last] = [r["step"] for r in log if r["kind"] == "epoch" and r["epoch"] == epoch + 1]
        assert last == batches + (epochs_of(whole)[0]["step"] if epoch else 0)
    [later] = [record for record in log if record["kind"] == "judgement" and "epoch" in record]
    assert later["epoch"] == 2 and later["judged_auroc"] == second.auroc


@pytest.mark.slow
def test_a_run_never_sees_a_pair_of_its_fold(whole, config, data):
    """Its scores leave the fold out, and do not depend on how the fold is stored."""
    found = read_judgement(whole / "judgement.npz")
    for fold in range(FOLDS):
        scores = np.load(whole / "judgement" / f"fold-{fold}" / "scores.npy")
        own = found.fold == fold
        assert (scores[own] == 0).all() and (scores[~own] > 0.5).any()
    stored = data.train.stored_image.copy()
    own = np.flatnonzero(found.fold == 0)
    stored[own] = np.roll(stored[own], 5)
    assert (stored[own] != data.train.stored_image[own]).any()
    others = replace(data.train.pairs, image_of=stored).take(found.fold != 0)
    again = judge_pairs(others, folds=FOLDS, seed=config.seed + 1)
    scores = np.load(whole / "judgement/fold-0/scores.npy")[found.fold != 0]
    assert again.is_rankable
    np.testing.assert_array_equal(scores, again.matched)


def stopping(patch, method: str) -> None:
    """Send SIGTERM when this method of `Run` is called in the run of the second fold."""
    real = getattr(Run, method)

    def stop(self, *inputs):
        if "fold-1" in self.config.data.scores:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *inputs)

    patch.setattr(Run, method, stop)


@pytest.mark.slow
def test_stopped_in_a_fold_and_without_the_truth_it_gives_the_same_bits(
    whole, config, data, devices, tmp_path, capsys, monkeypatch
):
    """Without the truth, every caption seems to be written for the image that it is stored with."""

    def hidden(data):
        blind = replace(data.train, caption_image=data.train.stored_image)
        return replace(data, train=blind)

    read = inputs.load_data
    monkeypatch.setattr(inputs, "load_data", lambda *args, **where: hidden(read(*args, **where)))
    workdir, where = tmp_path / "run", "fold 2 of 3, epoch 1, step 1"
    with pytest.MonkeyPatch.context() as patch:
        stopping(patch, "train_step")
        with pytest.raises(StoppedError, match=rf"{where}.* l2rm --workdir=\S*/run$"):
            train(config, workdir, devices)
    assert read_config(workdir) == config
    capsys.readouterr()
    by_runs = partial(open_detector, config, workdir=workdir, replicas=devices, train=train)
    judge_data(config, hidden(data), workdir, by_runs)
    assert judgement(workdir, 0) == judgement(whole, 0)
    said = capsys.readouterr().out
    assert [said.count(f"fold {fold} of 3: infonce-linear on") for fold in (1, 2, 3)] == [0, 1, 1]


@pytest.mark.slow
def test_heads_without_vectors_are_scored_in_blocks(whole, config, data, devices, monkeypatch):
    """Vectors and blocks of similarities give the same evidence."""
    own, part = fold_config(config, whole, 0, epoch=1), np.arange(0, PAIRS, 7)
    images, found = np.unique(data.train.stored_image[part]), []
    for is_product in (True, False):
        monkeypatch.setattr(RetrievalModel, "is_product", is_product)
        with open_run(own, data, whole / "judgement/fold-0", devices) as run:
            similarity, temperature = detector.fold_similarity(run, data.train, images, part)
            found.append((np.asarray(similarity(images, part)), temperature))
    for vectors, blocks in zip(*found, strict=True):
        np.testing.assert_allclose(vectors, blocks, atol=1e-4)


@pytest.mark.parametrize(
    ("warmup", "every", "judged", "epochs"),
    [
        (0, 0, [0, 0, 0, 0, 0], [7, 7, 7, 7, 7]),
        (0, 2, [0, 0, 2, 2, 4], [2, 2, 4, 4, 6]),
        (1, 2, [0, 0, 0, 3, 3], [2, 2, 2, 4, 4]),
        (2, 1, [0, 0, 0, 3, 4], [1, 1, 1, 2, 3]),
    ],
)
def test_the_runs_of_the_folds_stay_ahead(config, warmup, every, judged, epochs):
    changes = {"train.warmup_epochs": warmup, "train.epochs": 7, "judgement.every": every}
    asked = with_changes(config, changes)
    assert [judged_epoch(asked, epoch) for epoch in range(5)] == judged
    configs = [fold_config(asked, "w", 1, before) for before in judged]
    assert [own.train.epochs for own in configs] == epochs
    own = configs[0]
    assert own.train.draw == "even" and own.data.filter == "score"
    assert own.data.scores == "w/judgement/fold-1/scores.npy"
    check_settings(own)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"judgement.detector": "infonce"}, r"'infonce'"),
        ({"judgement.detector": "linear"}, r"judgement\.every: found 1"),
        ({"train.draw": "even"}, r"split\.by="),
        ({"data.filter": "judgement", "data.filter_value": 0.5}, r"judgement\.every: found 1"),
        ({"method": "cca"}, r"judgement\.every: found 1"),
        ({"data.filter": "truth"}, r"data\.filter: found 'truth'"),
        ({"judgement.detector": "rcsl-vse"}, r"judgement\.detector=rcsl-vse: method"),
        (
            {"judgement.detector": "infonce-saf", "model.head": "vse", "model.region_mask": 0.5},
            r"judgement\.detector=infonce-saf: model\.region_mask",
        ),
    ],
)
def test_errors_of_settings(config, changes, message):
    with pytest.raises(ConfigError, match=message):
        check_settings(with_changes(config, changes))


@pytest.mark.slow
def test_an_error_in_a_fold_names_it(config, data, devices, tmp_path):
    big = with_changes(
        config, {"train.batch_size": PAIRS - 10}
    )  # a third of the pairs are left out
    by_runs = partial(open_detector, big, workdir=tmp_path, replicas=devices, train=train)
    with pytest.raises(DataError, match=r"fold 1 of 3: train: "):
        judge_data(big, data, tmp_path, by_runs)
