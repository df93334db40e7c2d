"""Trained models that judge pictures: as the detector of a run, and as the scorer of an audit."""

import shutil

import numpy as np
import pytest

from l2rm_jax.audit.command import audit_run
from l2rm_jax.run.config_file import read_config
from l2rm_jax.run.detector import FOLD_DIRECTORY
from l2rm_jax.run.pretrained import VECTORS_FILE
from tests.run.pixel_runs import SIZES, clip_config, write_pixels
from tests.run.pretrained_runs import copy_model, run
from tests.run.tiny_runs import records

FOLDS = 2


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run on pixels that trains models of its own to judge its pairs; its original is gone."""
    directory = tmp_path_factory.mktemp("judged")
    original = copy_model(directory / "model", "clip")
    fields = {
        "data__filter": "crossfit",
        "data__filter_value": 0.01,
        "split__detector": "infonce-vse",
        "split__folds": FOLDS,
        "train__batch_size": 4,
        "train__epochs": 1,
    }
    config = clip_config(write_pixels(directory / "data"), original, **fields)
    results = run(config, directory / "run")
    shutil.rmtree(original)
    return directory / "run", results


@pytest.mark.slow
def test_a_trained_detector_reads_pictures(judged):
    workdir, results = judged
    assert 0 <= results["rsum"] <= 600
    [line] = [line for line in records(workdir) if line["kind"] == "crossfit"]
    assert line["filter_kept"] > 0
    for fold in range(FOLDS):
        config = read_config(workdir / FOLD_DIRECTORY.format(fold))
        assert config.model.image_encoder == "clip" and config.split.held_out == fold
        assert (workdir / FOLD_DIRECTORY.format(fold) / VECTORS_FILE).exists()


@pytest.mark.slow
def test_an_audit_trains_models_on_pictures(judged, tmp_path):
    workdir, _ = judged
    audit = audit_run(workdir, tmp_path / "audit", {"audit.folds": FOLDS})
    assert audit.settings.scorer == "infonce-vse"
    scores = np.load(tmp_path / "audit/scores.npy")
    assert len(scores) == 5 * SIZES["train"] and ((scores >= 0) & (scores <= 1)).all()
    assert "infonce-vse" in (tmp_path / "audit/report.md").read_text()
