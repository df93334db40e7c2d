"""Splits that a run draws from data with a single split."""

import itertools
import json
import shlex

import numpy as np
import pytest

from l2rm_jax import main, open_pairs
from l2rm_jax.config import default
from l2rm_jax.data.content_hashes import hash_images
from l2rm_jax.data.drawn_splits import INDEX_FILE, SPLITS, Drawn, draw_run_splits, draw_splits
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.loading import (
    load_data,
    load_train,
    open_untokenized,
    save_vocabulary_and_index,
)
from l2rm_jax.data.record import is_undivided
from l2rm_jax.errors import DataError
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.retriever.sources import image_source
from l2rm_jax.train import train
from tests.tiny import tiny_config, write_vectors

IMAGES = 60


def write_undivided(directory, images=IMAGES, captions=5 * IMAGES):
    """Vectors in the form of an import without `--split`; pairs of images 2k and 2k + 1 are equal.

    Only the first 20 images are such twins.
    """
    write_vectors(directory, train=images)
    for split in ("dev", "test"):
        for kind in ("ims", "caps"):
            (directory / f"{split}_{kind}.npy").unlink()
    features = np.load(directory / "train_ims.npy")
    features[1:20:2] = features[:20:2]
    np.save(directory / "train_ims.npy", features)
    sizes = {"train": {"images": images, "captions": captions}}
    form = {"vectors": 1, "dimensions": 6}
    record = {
        "split": {"by": "run"},
        "splits": sizes,
        "images": form,
        "captions": {"kind": "vectors", **form},
        "encoder": None,
        "source": {"pictures": None, "path": None},
        "rows": {"read": captions},
    }
    (directory / "dataset.json").write_text(json.dumps(record))
    return directory


@pytest.fixture
def directory(tmp_path):
    return write_undivided(tmp_path / "data")


def config_of(directory):
    changes = {"data.name": "data", "data.path": str(directory), "mismatch.rate": 0.0}
    return tiny_config("infonce", "vse", changes, warmup_epochs=0, epochs=1)


def load(config, workdir=None):
    return load_data(config.data, config.mismatch, workdir=workdir)


def read(pairs):
    """Rows of images and captions of pairs, as bytes."""
    images = pairs.images.rows(pairs.image_of)
    captions = (pairs.captions if pairs.captions is not None else pairs).rows(range(len(pairs)))
    return [a.tobytes() + b.tobytes() for a, b in zip(images, captions, strict=True)]


@pytest.mark.parametrize("shares", [[0.1], [0.1, 0.1], [0.25, 0.5], [0.001, 0.3]])
def test_shares_are_of_distinct_images_and_equal_ones_stay_together(shares):
    keys = np.random.default_rng(0).integers(0, 300, 1000).astype(np.uint64)
    split = draw_splits(keys, shares, "data")
    distinct, first = np.unique(keys, return_index=True)
    np.testing.assert_array_equal(split, split[first][np.searchsorted(distinct, keys)])
    counts = np.bincount(split[first], minlength=len(shares) + 1)
    assert counts[1:].tolist() == [max(2, round(share * len(distinct))) for share in shares]
    order = np.random.default_rng(1).permutation(len(keys))
    np.testing.assert_array_equal(draw_splits(keys[order], shares, "data"), split[order])


@pytest.mark.parametrize("distinct", [1, 4, 5])
def test_too_few_distinct_images_are_an_error(distinct):
    keys = np.repeat(np.arange(distinct, dtype=np.uint64), 7)
    with pytest.raises(DataError, match=f"mine: found {distinct} distinct .* at least 6"):
        draw_splits(keys, [0.1, 0.1], "mine")


def test_all_numbers_of_an_image_are_hashed():
    rng = np.random.default_rng(0)
    regions = rng.normal(size=(5, 3, 4)).astype(np.float32)
    regions[:, 0] = 1
    assert len(set(hash_images(RegionFeatures.from_array(regions, "regions")))) == 5
    pictures = np.zeros((4, 8, 8, 3), np.uint8)
    pictures[1:, 7, 7, 2] = [1, 2, 1]
    keys = hash_images(Pixels.from_array(pictures, "pictures"))
    assert len(set(keys)) == 3 and keys[1] == keys[3]


def test_a_run_draws_three_splits_of_all_pairs(directory):
    data, whole = load(config_of(directory)), open_pairs(directory)
    drawn = data.train.drawn
    parts = [read(split.pairs) for split in data.splits]
    assert sorted(itertools.chain(*parts)) == sorted(read(whole))
    assert read(data.train.pairs) == [read(whole)[row] for row in drawn.rows]
    sizes = [len(split.images) for split in data.splits]
    assert sizes == np.bincount(drawn.split).tolist() and min(sizes) >= 5
    assert [split.split for split in data.splits] == [*SPLITS]
    for one in data.splits:
        for other in data.splits:
            if one is not other:
                assert not set(hash_images(one.images)) & set(hash_images(other.images))
    np.testing.assert_array_equal(drawn.take(np.array([3, 1])).rows, drawn.rows[[3, 1]])


def test_a_work_directory_keeps_the_splits(directory, tmp_path):
    config, workdir = config_of(directory), tmp_path / "run"
    workdir.mkdir()
    data = load(config)
    save_vocabulary_and_index(data, workdir)
    index = np.load(workdir / INDEX_FILE)
    np.testing.assert_array_equal(index, data.train.drawn.split)
    # Whatever another version would draw, the run keeps its own.
    np.save(workdir / INDEX_FILE, np.roll(index, 20))
    (workdir / "mismatch_index.npy").unlink()
    again = load(config, workdir)
    assert [len(split.images) for split in again.splits] == np.bincount(index).tolist()
    assert read(again.test.pairs) != read(data.test.pairs)
    own, _ = load_train(config.data, config.mismatch, workdir=workdir)
    assert read(own.pairs) == read(again.train.pairs)
    all_pairs, _ = load_train(config.data, config.mismatch, workdir=None)
    assert read(all_pairs.pairs) == read(open_pairs(directory)) and all_pairs.drawn is None
    for wrong in (index[:-1], index + 1, index.astype(float)):
        np.save(workdir / INDEX_FILE, wrong)
        with pytest.raises(DataError, match="split_index"):
            load(config, workdir)


def test_the_first_images_of_the_training_split_may_be_taken(directory):
    config = config_of(directory)
    config.data.train_images, config.data.dev_images = 9, 3
    data = load(config)
    whole = read(open_pairs(directory))
    assert (len(data.train.images), len(data.dev.images)) == (9, 3)
    assert read(data.train.pairs) == [whole[row] for row in data.train.drawn.rows]


def test_dev_may_be_tested_and_no_unknown_split(directory):
    config = config_of(directory)
    config.data.test_split = "dev"
    data = load(config)
    assert read(data.test.pairs) == read(data.dev.pairs)
    config.data.test_split = "testall"
    with pytest.raises(DataError, match=r"testall.*--split"):
        load(config)


def test_scores_of_all_pairs_filter_the_training_pairs(directory, tmp_path):
    config = config_of(directory)
    config.data.filter, config.data.filter_value = "score", 0.5
    scores = np.random.default_rng(5).random(5 * IMAGES)
    np.save(tmp_path / "scores.npy", scores)
    config.data.scores = str(tmp_path / "scores.npy")
    data, rows = load(config), load(config_of(directory)).train.drawn.rows
    np.testing.assert_array_equal(data.train.drawn.rows, rows[scores[rows] >= 0.5])
    np.save(tmp_path / "scores.npy", scores[rows])  # of the training pairs alone
    assert len(load(config).train) == len(data.train)
    np.save(tmp_path / "scores.npy", scores[:-1])
    with pytest.raises(DataError, match=r"scores\.npy"):
        load(config)


def test_known_pairs_are_rows_of_all_pairs(directory, tmp_path):
    config = config_of(directory)
    rows = load(config).train.drawn.rows
    known = np.random.default_rng(3).permutation(5 * IMAGES)[:40]
    np.save(tmp_path / "known.npy", known)
    config.mismatch.protocol = "semi_paired"
    config.mismatch.paired_file = str(tmp_path / "known.npy")
    np.testing.assert_array_equal(load(config).train.known, np.isin(rows, known))
    config.data.train_images = 9
    data = load(config)
    np.testing.assert_array_equal(data.train.known, np.isin(data.train.drawn.rows, known))
    np.save(tmp_path / "known.npy", [5 * IMAGES])
    with pytest.raises(DataError, match=f"0 to {5 * IMAGES - 1}"):
        load(config)


def test_other_splits_of_the_directory_are_an_error_that_names_split(directory):
    config = default()
    config.data.path = str(directory)
    for split in ("test", "dev"):
        for read, inputs in (
            (open_pairs, (directory, split)),
            (image_source, (f"{directory}:{split}", None, None, config.data)),
            (open_untokenized, (config.data, split)),
        ):
            with pytest.raises(DataError, match=rf"{split}: found .* train.*--split"):
                read(*inputs)
    with pytest.raises(DataError, match="--split"):
        image_source(directory, None, None, config.data)
    assert len(image_source(f"{directory}:train", None, None, config.data).items) == IMAGES


def test_directories_with_splits_of_their_own_are_read_as_they_are(directory):
    assert is_undivided(directory) and not is_undivided(directory.parent) and not is_undivided("")
    write_vectors(directory, train=IMAGES)
    assert not is_undivided(directory)
    data = load(config_of(directory))
    assert data.train.drawn is None and len(data.train.images) == IMAGES


def test_pixels_and_regions_are_drawn(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 255, (20, 4, 4, 3)).astype(np.uint8)
    np.save(tmp_path / "train_pixels.npy", pictures)
    (tmp_path / "train_caps.txt").write_text("".join(f"caption {k}\n" for k in range(40)))
    drawn = draw_run_splits(open_pairs(tmp_path), None)
    assert isinstance(drawn, Drawn)
    test = drawn.pairs_of("test")
    own = np.flatnonzero(drawn.split == 2)
    np.testing.assert_array_equal(test.images.rows(range(len(own))), pictures[own])
    assert test.texts == [f"caption {k}" for row in own for k in (2 * row, 2 * row + 1)]


@pytest.mark.slow
def test_a_run_resumes_and_is_evaluated_and_judged_on_its_own_splits(directory, tmp_path, capsys):
    config, workdir = config_of(directory), tmp_path / "run"
    train(config, workdir)
    index = np.load(workdir / INDEX_FILE)
    sizes = np.bincount(index)
    main.main(["check", f"--data={directory}"])
    lines = capsys.readouterr().out.splitlines()
    for name, size in zip(SPLITS, sizes, strict=True):
        assert any(line.startswith(f"{name}: {size} images") for line in lines)
    config.train.epochs = 2
    results = train(config, workdir)  # continues
    assert evaluate_runs([workdir])[f"{workdir} (vse), custom"] == next(
        iter(results["test"].values())
    )
    main.main(["audit", f"--workdir={workdir}", f"--out={tmp_path / 'of_run'}"])
    kept = np.load(tmp_path / "of_run" / "scores.npy")
    assert len(kept) == 5 * np.count_nonzero(index == 0)


@pytest.mark.slow
def test_an_audit_of_all_pairs_serves_the_run(directory, tmp_path, monkeypatch, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "audit"
    main.main(["audit", f"--data={directory}", f"--out={out}"])
    scores = np.load(out / "scores.npy")
    assert len(scores) == 5 * IMAGES
    lines = capsys.readouterr().out.splitlines()
    [training] = [line for line in lines if line.startswith("train on the rest: ")]
    run = tmp_path / "runs" / "audit"
    main.main(shlex.split(training.partition(": ")[2])[1:])
    own = scores[np.repeat(np.load(run / INDEX_FILE) == 0, 5)]
    results = json.loads((run / "results.json").read_text())
    assert results["filter_kept"] == (own > 0.5).mean() < 1
    main.main(["audit", f"--workdir={run}", "--out=of_run"])
    dropped = parquet.read_table(tmp_path / "of_run" / "pairs.parquet")["dropped"].to_pylist()
    assert len(dropped) == len(own) and dropped.count("filter") == np.count_nonzero(own <= 0.5)
