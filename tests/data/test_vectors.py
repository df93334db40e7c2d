"""Captions as vectors instead of words: layouts, batches, errors and `l2rm check`."""

from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from l2rm_jax.check import check
from l2rm_jax.config import default
from l2rm_jax.data.batches import caption_batches
from l2rm_jax.data.loading import load_data, read_split, save_vocabulary_and_index
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.data.text import Vocabulary
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
    for vectors, lengths, rows, valid in caption_batches(test.tokens, 5, buckets=(3, 5, 8)):
        assert vectors.shape == (5, min(ROOM, 3 if lengths.max() <= 3 else vectors.shape[1]), WIDTH)
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


def test_repeated_images_are_read_once(config):
    for split, images in SIZES.items():
        rows = np.random.default_rng(1).normal(size=(images, 9)).astype(np.float32)
        np.save(file(config, f"{split}_ims.npy"), np.repeat(rows, 5, axis=0))
        captions = np.random.default_rng(2).normal(size=(5 * images, WIDTH)).astype(np.float32)
        np.save(file(config, f"{split}_caps.npy"), captions)
        file(config, f"{split}_lengths.npy").unlink()
    train = load(config).train
    assert (len(train.images), len(train), train.captions_per_image) == (12, 60, 5)


def test_a_run_keeps_no_vocabulary_and_stays_with_vectors(config, tmp_path):
    workdir = tmp_path / "run"
    save_vocabulary_and_index(load(config, workdir), workdir)
    assert [path.name for path in workdir.iterdir()] == ["mismatch_index.npy"]
    load(config, workdir)
    Vocabulary.build(["word"] * 4).write(workdir / "vocabulary.json")
    with pytest.raises(DataError, match=r"vocabulary\.json: found caption vectors"):
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


FAULTS = {  # how to cause each fault, and the start of its message; {} is the directory
    "words in one split": (
        remove("dev"),
        "dev: found words as captions, expected vectors (dev_caps.npy), as in {}/train_caps.npy",
    ),
    "dimensions": (
        change("test_caps.npy", lambda x: x[..., :4]),
        "{0}/test_caps.npy: found vectors of 4 dimensions, expected 5, as in {0}/train_caps.npy",
    ),
    "dtype": (
        change("dev_caps.npy", lambda x: np.nan_to_num(x).astype(int)),
        "{}/dev_caps.npy: found int64 [10, 7, 5], expected float32, float64, float16, or int8",
    ),
    "int8": (
        change("dev_caps.npy", lambda x: np.nan_to_num(x).astype(np.int8)),
        "{}/caps_scale.npy: no such file",
    ),
    "a caption too few": (
        change("train_caps.npy", lambda x: x[:-1]),
        "{}/train_lengths.npy: found int64 [24], expected integers [23]",
    ),
    "too long": (
        change("test_lengths.npy", lambda x: x + 1),
        "{}/test_lengths.npy: entry 6: found 8, expected 1 to 7 words",
    ),
    "nan": (
        change("train_caps.npy", set_nan),
        "{}/train_caps.npy: row 6: found nan (word 2, dimension 1), expected finite numbers",
    ),
    "text of another length": (
        lambda config: file(config, "train_caps.txt").write_text("one line\n"),
        "{0}/train_caps.txt: found 1 captions for the 24 rows of {0}/train_caps.npy",
    ),
    "captions that do not divide": (
        change("dev_ims.npy", lambda x: x[:3]),
        "{0}/dev_caps.npy: found 10 captions for the 3 images of {0}/dev_ims.npy",
    ),
    "noise of words": (
        lambda config: config.model.update(word_noise=0.2),
        "model.word_noise: found 0.2, expected 0",
    ),
    "a vocabulary": (
        set_vocabulary,
        "data.vocabulary cannot be combined with captions that are vectors",
    ),
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
    places = [message.split(": found")[0].split("/")[-1] for message in error.value.args]
    assert places == ["dev_caps.npy: row 6", "test_caps.npy: row 6"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_refuses_and_check_lists(config, fault):
    damage, expected = FAULTS[fault]
    expected = expected.format(config.data.path)
    read_as_a_run(config)
    damage(config)
    with pytest.raises((DataError, ConfigError)) as error:
        read_as_a_run(config)
    assert str(error.value).startswith(expected)
    with pytest.raises(L2RMError) as error:
        check(config)
    assert f"\n  {expected}" in str(error.value)


def test_check_says_what_the_vectors_hold(config):
    train, test = captions_of("train"), captions_of("test")
    test[4, :5], train[11, :5] = train[11, :5], train[11, :5]
    train[13] = train[6]
    train[2] = 3.0
    for split, captions in (("train", train), ("test", test)):
        np.save(file(config, f"{split}_caps.npy"), captions)
    report = check(config)
    section = report.split("train: 12 images")[1].split("dev: 5 images")[0]
    facts = {line[2:23].strip(): line[23:] for line in section.splitlines()[1:]}
    real = train[np.arange(ROOM) < lengths_of("train")[:, None]]
    assert report.startswith("vocabulary: none, captions are vectors\n")
    assert section.startswith(" of 1 regions x 9 features, 24 captions, 2 per image")
    assert facts["caption vectors"] == (
        f"float32 x 5; mean {real.mean():.3g}, deviation {real.std():.3g}"
    )
    assert facts["vectors of a caption"].startswith("1 to 7, median 3.5, 95% at most 7; 0 longer")
    assert facts["constant captions"] == "1: 2 (3)"
    assert facts["repeated captions"] == "1: 13 = 6"
    shared = report.split("both in train and in test:")[1].splitlines()[2]
    assert shared.split() == ["captions", "1:", "11", "=", "4"]
