"""Reading one split, and the three splits of a run with its vocabulary and mismatch."""

import logging
import shlex
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from l2rm_jax.config import default
from l2rm_jax.data.layouts.precomp import check_directory
from l2rm_jax.data.loading import load_data, load_train, read_split, save_vocabulary_and_index
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
WORDS = Vocabulary.build(["number"] * 4)


def features(images: int) -> np.ndarray:
    return RNG.normal(size=(images, 4, 6)).astype(np.float32)


def write_split(path: Path, split: str, images: np.ndarray, captions: int, suffix="txt") -> None:
    np.save(path / f"{split}_ims.npy", images)
    lines = [f"caption number {k}" for k in range(captions)]
    if suffix == "tsv":
        lines = [f"{k:04}\t{line}" for k, line in enumerate(lines)]
    (path / f"{split}_caps.{suffix}").write_text("\n".join(lines) + "\n")


def configs(path="", **changes) -> tuple[ConfigDict, ConfigDict]:
    """Sections `data` and `mismatch` of a config, with some fields of either changed."""
    config = default()
    config.data.update(name="own", path=str(path))
    config.mismatch.rate = 0.5
    for name, value in changes.items():
        section = config.mismatch if name in config.mismatch else config.data
        section[name] = str(value) if isinstance(value, Path) else value
    return config.data, config.mismatch


@pytest.fixture
def directory(tmp_path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    for split, images in (("train", 12), ("dev", 5), ("test", 6)):
        write_split(path, split, features(images), 5 * images)
    return path


@pytest.mark.parametrize("per_image", [1, 3, 5])
def test_captions_belong_to_images_in_order(tmp_path, per_image):
    stored = features(10)
    write_split(tmp_path, "dev", stored, 10 * per_image)
    dev = read_split(tmp_path, "dev", WORDS)
    assert (len(dev), dev.captions_per_image, dev.split) == (10 * per_image, per_image, "dev")
    assert dev.caption_image.tolist() == sorted(list(range(10)) * per_image)
    assert dev.matched.all()
    assert dev.captions[-1] == f"caption number {10 * per_image - 1}"
    assert dev.tokens[0].tolist() == [1, 3, 4, 3, 2]
    np.testing.assert_array_equal(dev.images.rows([9]), stored[[9]])


def test_repeated_images_of_a_split_are_read_once(tmp_path, caplog):
    stored = features(8)
    write_split(tmp_path, "dev", np.repeat(stored, 5, axis=0), 40)
    with caplog.at_level(logging.INFO):
        dev = read_split(tmp_path, "dev", WORDS)
    assert (dev.images.shape[0], len(dev), dev.captions_per_image) == (8, 40, 5)
    np.testing.assert_array_equal(dev.images.rows(dev.caption_image[[0, 39]]), stored[[0, 7]])
    assert "5 times" in caplog.text and "8 images" in caplog.text


def test_a_tsv_has_one_caption_per_image_whatever_its_rows(tmp_path):
    write_split(tmp_path, "dev", np.repeat(features(4), 5, axis=0), 20, suffix="tsv")
    dev = read_split(tmp_path, "dev", WORDS)
    assert (dev.images.shape[0], dev.captions_per_image) == (20, 1)


# Everything a run reads


def test_load_data_mismatches_only_training(directory):
    data = load_data(*configs(directory), workdir=None)
    assert [len(split) for split in (data.train, data.dev, data.test)] == [60, 25, 30]
    assert data.train.matched.mean() == pytest.approx(1 - data.mismatch.true_rate)
    assert not data.train.matched.all() and data.dev.matched.all() and data.test.matched.all()
    assert "true_rate 0.4167" in str(data.mismatch)


def test_vocabulary_is_built_from_the_pairs_used_and_dev(directory):
    def known(split, word, times):
        path = directory / f"{split}_caps.txt"
        lines = path.read_text().splitlines()
        for place in times:
            lines[place] += f" {word}"
        path.write_text("\n".join(lines) + "\n")

    known("train", "spread", (0, 1, 2))
    known("dev", "spread", (0,))
    known("train", "late", range(20, 60))
    known("test", "unseen", range(30))
    known("dev", "rare", range(3))
    used = configs(directory, train_images=4)
    data = load_data(*used, workdir=None)
    words = data.vocabulary.word2idx
    assert "spread" in words
    assert not {"late", "unseen", "rare"} & set(words)

    train, vocabulary = load_train(*used, workdir=None)  # as an audit reads them
    assert vocabulary == data.vocabulary
    for line, expected in zip(train.tokens, data.train.tokens, strict=True):
        np.testing.assert_array_equal(line, expected)
    (directory / "dev_caps.txt").unlink()
    assert "spread" not in load_train(*used, workdir=None)[1].word2idx


def test_first_images_only(directory):
    data = load_data(*configs(directory, train_images=4, dev_images=2), workdir=None)
    assert (len(data.train), len(data.dev), len(data.test)) == (20, 10, 30)
    assert len(data.mismatch.stored_image) == 20
    assert data.train.captions == [f"caption number {k}" for k in range(20)]


def test_sentences_are_split_where_asked(directory, monkeypatch):
    lines = ["Number.Caption." for _ in range(60)]
    (directory / "train_caps.txt").write_text("\n".join(lines) + "\n")
    load = "l2rm_jax.data.run_words.load_sentence_splitter"
    monkeypatch.setattr(load, lambda: lambda text: text.replace(".c", ".\nc").split("\n"))
    lengths = {}
    for asked in (False, True):
        data = load_data(*configs(directory, split_sentences=asked), workdir=None)
        lengths[asked] = len(data.train.tokens[0])
        assert ("number.caption" in data.vocabulary.word2idx) is not asked
    assert lengths == {False: 4, True: 6}


def test_named_test_split(directory):
    write_split(directory, "testall", features(9), 45)
    assert (
        load_data(*configs(directory, test_split="testall"), workdir=None).test.split == "testall"
    )


def test_workdir_keeps_vocabulary_and_index(directory, tmp_path):
    workdir = tmp_path / "runs" / "one"
    first = load_data(*configs(directory), workdir=workdir)
    assert not workdir.exists()  # loading alone writes nothing
    save_vocabulary_and_index(first, workdir)
    assert Vocabulary.read(workdir / "vocabulary.json") == first.vocabulary
    index = np.load(workdir / "mismatch_index.npy")
    assert np.array_equal(index, first.train.stored_image)
    times = {file: file.stat().st_mtime_ns for file in workdir.iterdir()}
    Vocabulary.build(["other words"] * 4).write(tmp_path / "other.json")
    second = load_data(*configs(directory, min_count=1), workdir=workdir)
    save_vocabulary_and_index(second, workdir)
    assert second.vocabulary == first.vocabulary  # the run's own, not a new one
    assert np.array_equal(second.train.stored_image, first.train.stored_image)
    assert times == {file: file.stat().st_mtime_ns for file in workdir.iterdir()}
    with pytest.raises(DataError, match=r"vocabulary\.json: .*other"):
        load_data(*configs(directory, vocabulary=tmp_path / "other.json"), workdir=workdir)


@pytest.mark.parametrize("change", [{"rate": 0.25}, {"seed": 1}, {"protocol": "caption"}])
def test_another_mismatch_in_the_workdir_is_refused(directory, tmp_path, change):
    data = load_data(*configs(directory), workdir=tmp_path)
    save_vocabulary_and_index(data, tmp_path)
    first = data.mismatch
    before = (tmp_path / "mismatch_index.npy").read_bytes()
    other = load_data(*configs(directory, **change), workdir=None).mismatch
    message = rf"{first.true_rate:.4f}, .*{other.true_rate:.4f}"
    with pytest.raises(DataError, match=message):
        load_data(*configs(directory, **change), workdir=tmp_path)
    assert (tmp_path / "mismatch_index.npy").read_bytes() == before


def test_semi_paired_data_say_what_is_paired_and_keep_it(directory, tmp_path):
    asked = configs(directory, protocol="semi_paired", paired_images=5)
    data = load_data(*asked, workdir=tmp_path)
    train = data.train
    assert train.paired.sum() == 5 * train.captions_per_image
    assert train.matched[train.paired].all() and not train.matched.all()
    assert data.dev.paired.all() and data.dev.matched.all()
    save_vocabulary_and_index(data, tmp_path)
    again = load_data(*asked, workdir=tmp_path).train
    np.testing.assert_array_equal(again.paired, train.paired)
    with pytest.raises(DataError, match="mismatch"):
        load_data(*configs(directory, protocol="semi_paired", paired_images=6), workdir=tmp_path)


@pytest.mark.parametrize("fields", [{"paired_images": 5}, {"protocol": "semi_paired"}])
def test_an_index_file_does_not_say_what_is_paired(directory, tmp_path, fields):
    np.save(tmp_path / "index.npy", np.arange(12))
    asked = configs(directory, file=str(tmp_path / "index.npy"), **fields)
    with pytest.raises(ConfigError, match=r"mismatch\.file"):
        load_data(*asked, workdir=None)


def test_given_vocabulary_and_index_are_used(directory, tmp_path):
    WORDS.write(tmp_path / "v.json")
    index = RNG.permutation(12)
    np.save(tmp_path / "index.npy", index)
    asked = configs(directory, vocabulary=tmp_path / "v.json", file=str(tmp_path / "index.npy"))
    for workdir in (None, tmp_path / "run", tmp_path / "run"):
        data = load_data(*asked, workdir=workdir)
        if workdir:
            save_vocabulary_and_index(data, workdir)
        assert data.vocabulary == WORDS
        assert np.array_equal(data.train.stored_image, np.repeat(index, 5))
        assert data.mismatch.source == str(tmp_path / "index.npy")


def test_built_in_scenes(tmp_path):
    data_config, noise = configs(name="scenes")
    counts = {"scenes_train": 30, "scenes_dev": 4, "scenes_test": 6, "scenes_seed": 0}
    data_config.update(counts)
    data = load_data(data_config, noise, workdir=tmp_path)
    assert [len(split) for split in (data.train, data.dev, data.test)] == [150, 20, 30]
    assert data.train.captions_per_image == 5 and not data.train.matched.all()
    assert np.isfinite(data.train.images.rows(np.arange(30))).all()
    assert len(data.vocabulary) > 20


@pytest.mark.parametrize("name", ["pairs.csv", "a b.parquet", "rows.npy"])
def test_a_file_instead_of_a_directory_gets_the_command_that_imports_it(tmp_path, name):
    file = tmp_path / name
    file.touch()
    with pytest.raises(DataError, match="found a file") as refused:
        check_directory(file)
    program, mode, source, *_ = shlex.split(refused.value.hint)
    assert (program, mode, source.partition("=")[2]) == ("l2rm", "import", str(file))
