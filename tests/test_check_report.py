"""The report of `check` on valid data: captions and features."""

from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from l2rm_jax.check import check
from tests.faulty_data import (
    SIZES,
    SPECIAL,
    give_vocabulary,
    load_features,
    set_features,
    set_line,
    write_data_set,
)


@pytest.fixture
def config(tmp_path) -> ConfigDict:
    return write_data_set(tmp_path)


def report_line(report: str, section: str, name: str) -> str:
    """The value of the line `name` in a section of the report."""
    lines = report.split(section)[1].splitlines()[1:]
    return next(line for line in lines if line.strip().startswith(name)).split(name)[1].strip()


def test_facts_of_captions(config):
    set_line("test", 3, "bad\ufffd word".encode())(config)
    set_line("test", 8, b"bad\x07 word " + b"very " * 70 + b"long")(config)
    set_line("test", 9, b"a dog , train number 7")(config)
    give_vocabulary([*SPECIAL, "a", "dog", "number", ",", "test"])(config)
    config.mismatch.rate = 0.4
    report = check(config)
    assert report_line(report, "test: 6", "broken characters") == "2: caption 3, caption 8"
    assert report_line(report, "test: 6", "tokens of a caption") == (
        "4 to 75, median 8, 95% at most 8; 1 longer than 64, so clipped in training"
    )
    # The number is unknown in each of 27 captions; 2, 73 and 2 words in the changed ones.
    unknown = 27 + 2 + 73 + 2
    words = 6 * 28 + 2 + 73
    assert report_line(report, "test: 6", "unknown words").startswith(
        f"{unknown / words:.2%} of all; 34: very (70), word (2), "
    )
    assert (
        report_line(report, "test: 6", "caption 1 became") == "a | dog | , | test | number | <unk>"
    )
    assert (
        report_line(report, "both in train and in test", "captions")
        == "1: 'a dog , train number 7'"
    )
    assert report_line(report, "both in dev and in test", "captions") == "none"
    assert report.splitlines()[-1].startswith(
        "mismatch: protocol image, rate_asked 0.4, true_rate 0.3333, kept_share 0.6667"
    )


def test_facts_of_features(config):
    train = load_features(config, "train")
    train[..., 3] = 2.0
    train[4] = train[9]
    train[6], train[8] = 0.0, 2.0
    set_features("train", lambda _: train)(config)
    test = load_features(config, "test")
    test[5] = train[1]
    set_features("test", lambda _: test)(config)
    report = check(config)
    assert report_line(report, "train: 12", "constant images") == "2: 6 (0), 8 (2)"
    assert report_line(report, "train: 12", "repeated images") == "1: 9 = 4"
    assert report_line(report, "test: 6", "repeated images") == "none"
    assert report_line(report, "train: 12", "same picture") == "none"
    assert report_line(report, "both in train and in test", "images") == "1: 1 = 5"
    assert report_line(report, "both in train and in dev", "images") == "none"
    assert report_line(report, "train: 12", "features") == (
        f"float32, each image stored once; mean {train.mean():.3g}, deviation {train.std():.3g}"
    )
    train[6, :, 3] = 2.0
    set_features("train", lambda _: train)(config)
    assert report_line(check(config), "train: 12", "constant dimensions") == "1: 3 (2)"


def test_a_picture_of_many_images_is_named_with_its_captions(config):
    def repeat(features):
        features[[2, 5, 6, 7, 11]] = features[2]
        features[9] = features[8]
        return features

    set_features("train", repeat)(config)
    line = report_line(check(config), "train: 12", "same picture")
    assert line == "1: image 2 and 4 more under 25 captions"


def test_check_reads_int8_features(config):
    scale = np.arange(1, 7, dtype=np.float32)
    for split, images in SIZES.items():
        stored = np.random.default_rng(images).integers(-128, 128, (images, 4, 6)).astype(np.int8)
        set_features(split, lambda _, stored=stored: stored)(config)
    np.save(Path(config.data.path) / "ims_scale.npy", scale)
    values = load_features(config, "train") * scale
    assert report_line(check(config), "train: 12", "features") == (
        f"int8, each image stored once; mean {values.mean():.3g}, deviation {values.std():.3g}"
    )
