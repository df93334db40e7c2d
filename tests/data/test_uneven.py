"""Any number of captions an image: `{split}_pairs.npy`, read, trained on and evaluated."""

from pathlib import Path

import jax
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.check import check
from l2rm_jax.data.loading import load_data
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import DataError
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.train import train
from tests import tiny

SIZES = {"train": 30, "dev": 8, "test": 9}


def write_data(path: Path) -> Path:
    """One vector an image and a caption of a common cause, with 1 to 4 captions an image."""
    rng = np.random.default_rng(0)
    to_image, to_caption = rng.normal(size=(2, 6, 12)).astype(np.float32)
    for split, images in SIZES.items():
        cause = rng.normal(size=(images, 6)).astype(np.float32)
        rows = np.repeat(np.arange(images), rng.permutation(np.arange(images) % 4 + 1))
        noise = 0.5 * rng.normal(size=(len(rows), 12)).astype(np.float32)
        np.save(path / f"{split}_ims.npy", cause @ to_image)
        np.save(path / f"{split}_caps.npy", (cause @ to_caption)[rows] + noise)
        np.save(path / f"{split}_pairs.npy", rows)
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("uneven"))


def rows_of(directory: Path, split: str) -> np.ndarray:
    return np.load(directory / f"{split}_pairs.npy")


def tiny_config(directory: Path, **changes):
    config = defaults.default()
    config.data.name, config.data.path = "uneven", str(directory)
    config.model.update(tiny.MODEL, dropout=0.0)
    config.train.update(batch_size=16, warmup_epochs=1, epochs=1)
    fields = {"method": "l2rm", "model.head": "vse", "mismatch.rate": 0.4}
    return with_changes(config, {**fields, **changes})


def test_captions_belong_to_the_images_that_the_file_names(directory):
    config = tiny_config(directory)
    data = load_data(config.data, config.mismatch, workdir=None)
    for split in data.splits:
        rows = rows_of(directory, split.split)
        np.testing.assert_array_equal(split.caption_image, rows)
        assert split.captions_per_image.tolist() == np.unique(rows, return_counts=True)[1].tolist()
    # Under the protocol of images, all captions of an image move together.
    stored = [set(data.train.stored_image[data.train.caption_image == i]) for i in range(30)]
    assert all(len(images) == 1 for images in stored)
    report = check(config)
    assert f"{len(rows_of(directory, 'train'))} captions, 1 to 4 per image" in report


def test_any_number_of_captions_may_be_the_same_number(tmp_path):
    """Equal numbers of captions and images, and equal rows, are still no repeated images."""
    write_data(tmp_path)
    for split, images in SIZES.items():
        np.save(tmp_path / f"{split}_ims.npy", np.ones((images, 12), np.float32))
        np.save(tmp_path / f"{split}_caps.npy", np.ones((images, 12), np.float32))
        np.save(tmp_path / f"{split}_pairs.npy", np.arange(images, dtype=np.int32))
    config = tiny_config(tmp_path)
    data = load_data(config.data, config.mismatch, workdir=None)
    assert [len(split.images) for split in data.splits] == list(SIZES.values())
    assert data.train.captions_per_image == 1


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([0, 0, 1], r"found int64 \[3\]"),
        ([0.0, 0, 1, 2], r"found float64 \[4\]"),
        ([0, 0, 1, 3], r"entry 3: found 3"),
        ([0, -1, 1, 2], r"entry 1: found -1"),
        ([0, 1, 0, 2], "entry 2: found 0 after 1"),
        ([0, 0, 2, 2], "found no row 1"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, entries, message):
    write_data(tmp_path)
    np.save(tmp_path / "train_ims.npy", np.ones((3, 12), np.float32))
    np.save(tmp_path / "train_caps.npy", np.ones((4, 12), np.float32))
    np.save(tmp_path / "train_pairs.npy", np.array(entries))
    config = tiny_config(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        load_data(config.data, config.mismatch, workdir=None)
    assert str(caught.value).startswith(f"{tmp_path}/train_pairs.npy: ")


RUNS = {
    "l2rm": {"mismatch.protocol": "caption"},
    "rcl": {"method": "rcl", "mismatch.protocol": "image"},
    "cca": {"method": "cca", "model.head": "linear"},
    "crossfit": {"split.by": "judgement", "judgement.folds": 3},
    "rcsl": {
        "method": "rcsl",
        "model.head": "aggregate",
        "mismatch.protocol": "semi_paired",
        "mismatch.rate": 0.0,
        "mismatch.paired_images": 15,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_methods_train_on_uneven_pairs(directory, tmp_path, name):
    config = tiny_config(directory, **RUNS[name])
    results = train(config, tmp_path, Replicas(jax.devices()[:1]))
    row = results["test"]["custom"]
    assert row["images"] == SIZES["test"] and 0 < row["rsum"] <= 600
    if name == "l2rm":
        # All candidates proposed by the run itself: the full ranking again.
        rows = evaluate_runs(
            [tmp_path], proposer=tmp_path, candidates=[len(rows_of(directory, "test"))]
        )
        two_stage, _ = rows.values()
        assert {key: two_stage[key] for key in row} == row
