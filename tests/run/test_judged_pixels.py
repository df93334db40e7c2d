"""Trained models that judge pictures: as the detector of a run, and of an audit."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax.run.config_file import read_config
from l2rm_jax.run.fold_runs import FOLD_DIRECTORY, SCORES_FILE
from tests.run.pixel_runs import clip_config, open_model
from tests.run.pretrained_runs import copy_model, run
from tests.run.tiny_runs import records
from tests.shared_programs import shared_programs

FOLDS = 3
SIZES = {"train": 60, "dev": 12, "test": 12}
COLOURS = {
    "red": (200, 30, 30), "green": (30, 180, 40), "blue": (40, 60, 200), "yellow": (230, 220, 40),
    "white": (240, 240, 240), "black": (10, 10, 10), "orange": (240, 140, 20),
}  # fmt: skip


def write_flags(directory: Path) -> Path:
    """Write pictures of two colours and captions that say which: random models tell them apart."""
    directory.mkdir()
    rng, names = np.random.default_rng(0), list(COLOURS)
    size = open_model().bases.image.image_size
    for split, images in SIZES.items():
        pixels, captions = np.zeros((images, size, size, 3), np.uint8), []
        for picture in pixels:
            above, below = rng.choice(names, 2)
            picture[: size // 2], picture[size // 2 :] = COLOURS[above], COLOURS[below]
            captions += [f"a {above} box above a {below} ball\n"] * 5
        np.save(directory / f"{split}_pixels.npy", pixels)
        (directory / f"{split}_caps.txt").write_text("".join(captions))
    return directory


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run on pixels that trains models of its own to judge its pairs; its original is gone."""
    directory = tmp_path_factory.mktemp("judged")
    original = copy_model(directory / "model", "clip")
    fields = {
        "data__filter": "judgement",
        "data__filter_value": 0.01,
        "judgement__detector": "infonce-vse",
        "judgement__folds": FOLDS,
        "train__batch_size": 24,
        "train__warmup_epochs": 0,
        "train__epochs": 1,
    }
    config = clip_config(write_flags(directory / "data"), original, **fields)
    with shared_programs():
        results = run(config, directory / "run")
    shutil.rmtree(original)
    return directory / "run", results


@pytest.mark.slow
def test_a_trained_detector_reads_pictures(judged):
    workdir, results = judged
    assert 0 <= results["rsum"] <= 600
    [line] = [line for line in records(workdir) if line["kind"] == "judgement"]
    assert line["filter_kept"] > 0
    for fold in range(FOLDS):
        config = read_config(workdir / FOLD_DIRECTORY.format(fold))
        scores = workdir / FOLD_DIRECTORY.format(fold) / SCORES_FILE
        assert config.model.image_encoder == "clip" and config.data.scores == str(scores)
