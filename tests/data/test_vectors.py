"""Captions as vectors instead of words: layouts, batches, errors and `l2rm check`."""

from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from l2rm_jax.check import check
from l2rm_jax.config import default
from l2rm_jax.data.batches import caption_batches
from l2rm_jax.data.loading import load_data, read_split, save_vocabulary_and_index
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.data.vectors import fit_rows
from l2rm_jax.errors import ConfigError, DataError, L2RMError
from l2rm_jax.run.inputs import check_values, read_data

SIZES = {"train": 12, "dev": 5, "test": 6}
PER_IMAGE, ROOM, WIDTH = 2, 7, 5


def captions_of(split: str) -> np.ndarray:
    rng = np.random.default_rng(SIZES[split])
    return rng.normal(size=(PER_IMAGE * SIZES[split], ROOM, WIDTH)).astype(np.float32)


def lengths_of(split: str) -> np.ndarray:
    return np.arange(PER_IMAGE * SIZES[split]) % ROOM + 1


@pytest.fixture
def config(tmp_path) -> ConfigDict:
    """A data set of one vector an image and 1 to 7 vectors a caption, with NaN after the last."""
    for split, images in SIZES.items():
        rng = np.random.default_rng(images)
        np.save(tmp_path / f"{split}_ims.npy", rng.normal(size=(images, 9)).astype(np.float32))
        captions = captions_of(split)
        captions[np.arange(ROOM) >= lengths_of(split)[:, None]] = np.nan
        np.save(tmp_path / f"{split}_caps.npy", captions)
        np.save(tmp_path / f"{split}_lengths.npy", lengths_of(split))
    config = default()
    config.data.name, config.data.path = "mine", str(tmp_path)
    config.train.batch_size = 4
    return config


def load(config: ConfigDict, workdir=None):
    return load_data(config.data, config.mismatch, workdir=workdir)


def file(config: ConfigDict, name: str) -> Path:
    return Path(config.data.path) / name


def test_sets_of_vectors_are_captions(config):
    data = load(config)
    assert not data.vocabulary.word2idx
    assert data.train.images.shape == (12, 1, 9)
    assert (len(data.train), data.train.captions_per_image) == (24, 2)
    assert data.test.captions[3] == "test_caps.npy row 3"
    assert data.train.lengths.tolist() == lengths_of("train").tolist()
    assert len(data.train.tokens) == 24 and len(data.dev.head(3).tokens) == 6


@pytest.mark.parametrize("max_words", [64, 3])
def test_batches_hold_the_vectors_of_their_pairs(config, max_words):
    train = load(config).train
    rows = {"pairs": np.arange(len(train))}
    stream = TrainStream(train, rows, batch_size=4, seed=0, epoch=0, max_words=max_words)
    stored, lengths = captions_of("train"), np.minimum(lengths_of("train"), max_words)
    widths = set()
    for item in stream.iterate():
        batch = item["pairs"]
        assert batch.tokens.dtype == np.float32
        np.testing.assert_array_equal(batch.lengths, lengths[batch.pair_index])
        widths.add(batch.tokens.shape[1])
        for vectors, length, row in zip(batch.tokens, batch.lengths, batch.pair_index, strict=True):
            np.testing.assert_array_equal(vectors[:length], stored[row, :length])
            assert not vectors[length:].any()
    assert widths == {ROOM}  # a bucket has eight words


def test_every_caption_is_scored_once(config):
    test = load(config).test
    seen = []
    for batch, rows, valid in caption_batches(test.tokens, 5):
        vectors, lengths = batch.tokens, batch.lengths
        assert vectors.shape == (5, ROOM, WIDTH)  # a bucket has eight words
        for caption, length, row in zip(vectors, lengths, rows, strict=True):
            np.testing.assert_array_equal(caption[:length], captions_of("test")[row, :length])
        seen += list(rows[:valid])
    assert sorted(seen) == list(range(12))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_one_vector_each_is_a_set_of_one(config, dtype):
    for split in SIZES:
        np.save(file(config, f"{split}_caps.npy"), captions_of(split)[:, 0].astype(dtype))
        file(config, f"{split}_lengths.npy").unlink()
    train = load(config).train
    rows = {"pairs": np.arange(len(train))}
    [batch] = list(TrainStream(train, rows, batch_size=24, seed=0, epoch=0).iterate())
    batch = batch["pairs"]
    assert batch.tokens.shape == (24, 1, WIDTH) and batch.images.shape == (24, 1, 9)
    expected = captions_of("train")[batch.pair_index, :1].astype(dtype)
    np.testing.assert_array_equal(batch.tokens, expected.astype(np.float32))


def test_text_beside_vectors_is_for_reading(config):
    for split in SIZES:
        lines = [f"line {k} of {split}" for k in range(PER_IMAGE * SIZES[split])]
        file(config, f"{split}_caps.txt").write_text("\n".join(lines))
    data = load(config)
    assert data.dev.captions[3] == "line 3 of dev" and not len(data.vocabulary)
    # A published checkpoint reads words.
    words = read_split(config.data.path, "dev", Vocabulary.build(["line of"] * 4))
    assert words.tokens[3].tolist() == [1, 4, 3, 5, 3, 2]


def test_a_run_keeps_no_vocabulary_and_stays_with_vectors(config, tmp_path):
    workdir = tmp_path / "run"
    save_vocabulary_and_index(load(config, workdir), workdir)
    assert [path.name for path in workdir.iterdir()] == ["mismatch_index.npy"]
    load(config, workdir)
    Vocabulary.build(["word"] * 4).write(workdir / "vocabulary.json")
    with pytest.raises(DataError, match=r"vocabulary\.json: "):
        load(config, workdir)


def remove(split: str):
    def damage(config):
        lines = [f"line {k}" for k in range(PER_IMAGE * SIZES[split])]
        file(config, f"{split}_caps.npy").unlink()
        file(config, f"{split}_caps.txt").write_text("\n".join(lines))

    return damage


def change(name: str, edit):
    return lambda config: np.save(file(config, name), edit(np.load(file(config, name))))


def set_nan(vectors: np.ndarray) -> np.ndarray:
    vectors[6, 2, 1] = np.nan
    return vectors


def set_vocabulary(config):
    config.data.vocabulary = "words.json"


# How to cause each fault, and what its message starts with and names.
FAULTS = {
    "words in one split": (remove("dev"), "dev: ", ""),
    "dimensions": (change("test_caps.npy", lambda x: x[..., :4]), "{}/test_caps.npy: ", "4"),
    "dtype": (
        change("dev_caps.npy", lambda x: np.nan_to_num(x).astype(int)),
        *("{}/dev_caps.npy: ", "int64 [10, 7, 5]"),
    ),
    "int8": (
        change("dev_caps.npy", lambda x: np.nan_to_num(x).astype(np.int8)),
        *("{}/caps_scale.npy: ", ""),
    ),
    "a caption too few": (
        change("train_caps.npy", lambda x: x[:-1]),
        *("{}/train_lengths.npy: ", "int64 [24]"),
    ),
    "too long": (change("test_lengths.npy", lambda x: x + 1), "{}/test_lengths.npy: entry 6:", "8"),
    "nan": (change("train_caps.npy", set_nan), "{}/train_caps.npy: row 6: ", "nan"),
    "text of another length": (
        lambda config: file(config, "train_caps.txt").write_text("one line\n"),
        *("{}/train_caps.txt: ", "24"),
    ),
    "captions that do not divide": (
        change("dev_ims.npy", lambda x: x[:3]),
        *("{}/dev_caps.npy: ", "10"),
    ),
    "noise of words": (
        lambda config: config.model.update(word_noise=0.2),
        "model.word_noise: ",
        "0.2",
    ),
    "a vocabulary": (set_vocabulary, "data.vocabulary ", "vectors"),
}


def read_as_a_run(config: ConfigDict) -> None:
    for split in read_data(config, "nowhere").splits:
        list(caption_batches(split.tokens, 4))


def test_vectors_of_dev_and_test_are_checked_before_training(config):
    data = load(config)
    check_values(data.dev, data.test)
    for split in ("dev", "test"):
        change(f"{split}_caps.npy", set_nan)(config)
    data = load(config)
    with pytest.raises(DataError) as error:
        check_values(data.dev, data.test)
    for split, message in zip(("dev", "test"), error.value.args, strict=True):
        assert f"{split}_caps.npy: row 6: " in message


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_refuses_and_check_lists(config, fault):
    damage, start, named = FAULTS[fault]
    start = start.format(config.data.path)
    read_as_a_run(config)
    damage(config)
    with pytest.raises((DataError, ConfigError)) as error:
        read_as_a_run(config)
    assert str(error.value).startswith(start) and named in str(error.value)
    with pytest.raises(L2RMError) as error:
        check(config)
    assert f"\n  {start}" in str(error.value)


def test_pairs_without_vectors_are_refused():
    with pytest.raises(DataError, match="found pairs without vectors"):
        fit_rows(Pairs(np.zeros((2, 0), np.float32), None, np.arange(2)))
