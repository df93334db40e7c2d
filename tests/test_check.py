"""Bad input: a run refuses it, and `check` lists all problems with the same messages."""

import re
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from l2rm_jax.check import check
from l2rm_jax.data.batches import image_batches
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.run.inputs import read_data
from l2rm_jax.train import train
from tests.faulty_data import (
    DAMAGES,
    SPECIAL,
    give_vocabulary,
    load_features,
    set_features,
    set_line,
    set_lines,
    set_row,
    write_data_set,
)


@pytest.fixture
def config(tmp_path) -> ConfigDict:
    return write_data_set(tmp_path)


def read_as_run(config: ConfigDict) -> None:
    for split in read_data(config, "nowhere").splits:
        list(image_batches(split.images, 4))


def listed_problems(config: ConfigDict) -> list[str]:
    """The lines that `check` lists; asserts that the count on its first line is right."""
    with pytest.raises(DataError) as error:
        check(config)
    first, *lines = str(error.value).splitlines()
    count = int(re.search(r"\d+", first)[0])
    if "more like" not in str(error.value):
        assert count == len(lines)
    return [line.strip() for line in lines]


def test_valid_data_are_accepted(config):
    read_as_run(config)
    assert "train: 12 images" in check(config)


def test_unknown_words_above_a_half_are_a_problem(config):
    give_vocabulary([*SPECIAL, "a", "number"])(config)
    problems = listed_problems(config)
    assert [line.partition(":")[0] for line in problems] == ["train", "dev", "test"]
    assert "67%" in problems[0] and "a | <unk> | <unk> | <unk> | number | <unk>" in problems[0]


@pytest.mark.parametrize("split", ["dev", "test"])
def test_values_of_dev_and_test_are_checked_before_training(config, tmp_path, split):
    set_row(split, 4, np.inf)(config)
    with pytest.raises(DataError, match=f"{split}_ims.npy: row 4: .*inf"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("fault", DAMAGES)
def test_a_run_refuses_and_check_lists(config, fault):
    damage, expected = DAMAGES[fault]
    expected = expected.format(config.data.path)
    damage(config)
    with pytest.raises((DataError, ConfigError)) as error:
        read_as_run(config)
    assert str(error.value).startswith(expected)
    (problem,) = listed_problems(config)
    assert problem.startswith(expected)


def test_everything_wrong_is_listed_at_once(config):
    names = [
        *("truncated", "nan", "infinite", "dimensions", "empty caption", "not UTF-8"),
        *("no <unk>", "rate", "fewer than no images"),
    ]
    hidden = names.pop()  # a split whose features cannot be read is not checked further
    for name in [*names, hidden]:
        DAMAGES[name][0](config)
    expected = sorted(DAMAGES[name][1].format(config.data.path) for name in names)
    for line, start in zip(sorted(listed_problems(config)), expected, strict=True):
        assert line.startswith(start)


def test_one_problem_hides_no_other(config):
    """Neither among field values, nor data, nor sizes of splits."""
    wrong = {"precision": "fp8", "evaluation.protocol": "f30k-1k", "train.batch_size": 1000}
    config.update_from_flattened_dict({**wrong, "mismatch.rate": 1.5})
    assert [line.split()[0] for line in listed_problems(config)] == [
        "precision:", "mismatch.rate:", "train:", "evaluation.protocol:",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "also"),
    [
        ({"l2rm.cost": "x", "l2rm.mask": "y", "l2rm.solver": "z", "l2rm.rematch_loss": "r"}, {}),
        ({"rcl.loss": "x", "rcl.q": 0.0, "rcl.negatives": 8}, {"method": "rcl"}),
        ({"mismatch.protocol": "x", "mismatch.rate": 1.5, "mismatch.seed": -1}, {}),
        ({"mismatch.paired_images": 3, "mismatch.rate": -0.5}, {}),
        ({"seed": -1, "method": "x", "precision": "fp8", "model.head": "y"}, {}),
        ({"model.head": "x", "model.pooling": "y", "l2rm.cost": "z"}, {}),
        ({"model.region_mask": 0.5, "model.margins": "x"}, {"model.head": "saf"}),
        ({"data.scores": "", "data.filter_value": 2.0}, {"data.filter": "share"}),
        ({"train.batch_size": 0, "train.log_steps": 0, "data.test_split": "\0"}, {}),
        ({"data.max_words": None, "mismatch.rate": float("nan"), "train.batch_size": None}, {}),
    ],
)
def test_one_wrong_field_hides_no_other(config, wrong, also):
    config.update_from_flattened_dict({**wrong, **also})
    assert sorted(line.split()[0].rstrip(":") for line in listed_problems(config)) == sorted(wrong)


def test_captions_that_cannot_be_read_hide_no_other_file(config):
    """The index and score files are checked although the training captions cannot be read."""
    set_line("train", 4, b"")(config)
    config.mismatch.file, config.data.filter = config.data.path + "/index.npy", "share"
    config.data.scores, config.data.filter_value = config.data.path + "/scores.npy", 0.5
    first, *files = listed_problems(config)
    assert "train_caps.txt:4: found an empty caption" in first
    assert files == [f"{config.data.path}/{name}.npy: no such file" for name in ("index", "scores")]
    np.save(config.mismatch.file, np.arange(12.0))
    np.save(config.data.scores, np.where(np.arange(60) == 7, np.nan, 0.5))
    _, index, scores = listed_problems(config)
    assert "index.npy: found float64 [12], expected one axis of integers" in index
    assert "scores.npy: entry 7: found nan, expected a finite number" in scores


def test_counts_hide_neither_each_other_nor_the_features(config):
    counts = np.array([4, 0, 3, 5, -1, 4, 1, 4, 4, 4, 4, 4])
    np.save(Path(config.data.path) / "train_regions.npy", counts)
    for row in (6, 7):  # row 6 has one region; its NaN lies in the padding after it
        set_row("train", row, np.nan)(config)
    assert [
        line.removeprefix(f"{config.data.path}/train_") for line in listed_problems(config)
    ] == [
        *(f"regions.npy: entry {n}: found {counts[n]}, expected 1 to 4 regions" for n in (1, 3, 4)),
        "ims.npy: row 7: found nan (region 1, dimension 2), expected finite numbers",
    ]


@pytest.mark.parametrize("take", ["train_images", "filter"])
def test_a_bad_test_caption_hides_no_small_training_split(config, take):
    config.train.batch_size = 24
    if take == "train_images":
        config.data.train_images = 4
    else:
        np.save(Path(config.data.path) / "scores.npy", np.arange(60))
        config.data.filter, config.data.filter_value = "score", 40.0
        config.data.scores = config.data.path + "/scores.npy"
    small = "train: found 20 pairs, expected at least one batch of 24"
    assert listed_problems(config) == [small]
    set_line("test", 2, b"")(config)
    assert listed_problems(config)[1:] == [small]


def test_the_split_that_differs_is_named_once(config):
    """Another split is not blamed, although the training captions cannot be used."""
    set_features("train", lambda x: x[:11])(config)
    set_features("dev", lambda x: x[:, :3])(config)
    count, regions = listed_problems(config)
    assert "train_caps.txt: found 60 captions for the 11 images" in count
    assert "/dev_ims.npy: found 3 regions x 6 features, expected 4 x 6, as in" in regions
    assert regions.endswith("/train_ims.npy")


def test_many_problems_of_a_kind_are_counted(config):
    for line in range(3, 30):
        set_line("train", line, b"")(config)
    set_line("train", 40, b"\xff")(config)
    for row in range(9):
        set_row("train", row, np.nan)(config)
    lines = listed_problems(config)
    empty = [line for line in lines if "found an empty caption" in line]
    assert [line.split(":")[1] for line in empty] == ["3", "4", "5", "6", "7"]
    assert sum("in UTF-8" in line for line in lines) == 1
    assert "... and 22 more like the last one" in lines
    assert "... and 4 more like the last one" in lines  # rows with NaN
    with pytest.raises(DataError) as error:
        read_as_run(config)
    assert "train_caps.txt:3: " in str(error.value) and "27" in str(error.value)


def test_repeated_rows_are_compared_whole(config):
    stored = np.repeat(load_features(config, "dev"), 5, axis=0)
    set_features("dev", lambda _: stored)(config)
    assert "each image stored 5 times" in check(config)
    many = np.repeat(np.random.default_rng(1).normal(size=(200, 4, 6)), 5, axis=0)
    many = many.astype(np.float32)
    # Not in a sampled block and not in the first region, so a run does not compare it.
    many[1 * 5 + 3, 3, 0] += 1
    set_features("dev", lambda _: many)(config)
    set_lines("dev", lambda lines: [b"a dog"] * 1000)(config)
    read_as_run(config)
    (problem,) = listed_problems(config)
    assert "dev_ims.npy: rows 5 to 9: found different images" in problem
