"""Bad input: what a run refuses, `check` lists, by the same words and all of it at once."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from l2rm_jax.check import check
from l2rm_jax.config import default
from l2rm_jax.data.batches import image_batches
from l2rm_jax.errors import ConfigError, DataError, L2RMError, Problems
from l2rm_jax.run.inputs import read_data

SIZES = {"train": 12, "dev": 5, "test": 6}
SPECIAL = ["<pad>", "<start>", "<end>", "<unk>"]


@pytest.fixture
def config(tmp_path) -> ConfigDict:
    """Of a small data set of files without a fault: 4 regions x 6 features, 5 captions an image."""
    rng = np.random.default_rng(0)
    for split, images in SIZES.items():
        features = rng.normal(size=(images, 4, 6)).astype(np.float32)
        np.save(tmp_path / f"{split}_ims.npy", features)
        lines = [f"a dog , {split} number {k}" for k in range(5 * images)]
        (tmp_path / f"{split}_caps.txt").write_text("\n".join(lines) + "\n")
    config = default()
    config.data.name, config.data.path = "mine", str(tmp_path)
    config.train.batch_size = 8
    return config


def features_of(config: ConfigDict, split: str) -> np.ndarray:
    return np.load(Path(config.data.path) / f"{split}_ims.npy")


def set_features(split: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable:
    def damage(config):
        changed = change(features_of(config, split))
        np.save(Path(config.data.path) / f"{split}_ims.npy", changed, allow_pickle=True)

    return damage


def set_row(split: str, row: int, value: float) -> Callable:
    def change(features):
        features[row, 1, 2] = value
        return features

    return set_features(split, change)


def set_lines(split: str, change: Callable[[list[bytes]], list[bytes]]) -> Callable:
    def damage(config):
        path = Path(config.data.path) / f"{split}_caps.txt"
        path.write_bytes(b"\n".join(change(path.read_bytes().splitlines())) + b"\n")

    return damage


def set_line(split: str, number: int, text: bytes) -> Callable:
    return set_lines(split, lambda lines: [*lines[: number - 1], text, *lines[number:]])


def truncate(config: ConfigDict) -> None:
    path = Path(config.data.path) / "dev_ims.npy"
    path.write_bytes(path.read_bytes()[:-8])


def remove(name: str) -> Callable:
    return lambda config: (Path(config.data.path) / name).unlink()


def set_field(key: str, value: object) -> Callable:
    return lambda config: config.update_from_flattened_dict({key: value})


def give_index(entries: list[int]) -> Callable:
    def damage(config):
        np.save(Path(config.data.path) / "index.npy", entries)
        config.mismatch.file = str(Path(config.data.path) / "index.npy")

    return damage


def give_vocabulary(words: list[str]) -> Callable:
    def damage(config):
        content = {
            "word2idx": {word: i for i, word in enumerate(words)},
            "idx2word": {str(i): word for i, word in enumerate(words)},
            "idx": len(words),
        }
        path = Path(config.data.path) / "vocab.json"
        path.write_text(json.dumps(content))
        config.data.vocabulary = str(path)

    return damage


DAMAGES = {  # a fault: what says so, {} being the directory
    "method": (set_field("method", "l3rm"), "method: 'l3rm' is none of l2rm, "),
    "head": (set_field("model.head", "sfa"), "model.head: 'sfa' is none of sgr, "),
    "a name within the method": (set_field("l2rm.solver", "x"), "l2rm.solver: 'x' is none of "),
    "precision": (set_field("precision", "fp8"), "precision: 'fp8' is none of "),
    "queue": (set_field("l2rm.queue_length", 7), "queue_length is 7, expected 0 or a multiple"),
    "no directory": (
        set_field("data.path", "/nowhere"),
        "/nowhere: no such directory; expected the directory of train_ims.npy and train_caps.txt",
    ),
    "no path": (set_field("data.path", ""), "data.path is empty; expected the directory"),
    "no features": (remove("dev_ims.npy"), "{}/dev_ims.npy: no such file"),
    "no captions": (
        remove("test_caps.txt"),
        "{}/test_caps.txt, test_caps.tsv: found neither, expected one of them",
    ),
    "rank": (
        set_features("train", lambda x: x[None]),
        "{}/train_ims.npy: found float32 [1, 12, 4, 6], expected float32, float16, or int8",
    ),
    "dtype": (
        set_features("dev", lambda x: x.astype(float)),
        "{}/dev_ims.npy: found float64 [5, 4, 6], expected float32, float16, or int8",
    ),
    "pickle": (
        set_features("dev", lambda x: np.array([{}])),
        "{}/dev_ims.npy: holds Python objects, which are never unpickled; expected numbers",
    ),
    "truncated": (
        truncate,
        "{}/dev_ims.npy: truncated: found 600 bytes, expected 608 for float32 [5, 4, 6]",
    ),
    "nan": (
        set_row("train", 7, np.nan),
        "{}/train_ims.npy: row 7 holds nan (region 1, dimension 2), expected finite numbers",
    ),
    "infinite": (
        set_row("test", 5, -np.inf),
        "{}/test_ims.npy: row 5 holds -inf (region 1, dimension 2), expected finite numbers",
    ),
    "dimensions": (
        set_features("test", lambda x: x[..., :5]),
        "{0}/test_ims.npy: found 4 regions x 5 features, expected 4 x 6 as in {0}/train_ims.npy",
    ),
    "regions": (
        set_features("dev", lambda x: x[:, :3]),
        "{0}/dev_ims.npy: found 3 regions x 6 features, expected 4 x 6 as in {0}/train_ims.npy",
    ),
    "one caption too few": (
        set_lines("dev", lambda lines: lines[:-1]),
        "{0}/dev_caps.txt: found 24 captions for the 5 images of {0}/dev_ims.npy, expected a "
        "multiple of the number of images",
    ),
    "fewer captions than images": (
        set_lines("dev", lambda lines: lines[:4]),
        "{0}/dev_caps.txt: found 4 captions for the 5 images of {0}/dev_ims.npy",
    ),
    "empty caption": (
        set_line("train", 9, b" \r"),
        "{}/train_caps.txt:9: the caption is empty, expected one caption a line",
    ),
    "not UTF-8": (
        set_line("test", 2, b"caf\xe9"),
        "{}/test_caps.txt:2: byte 4 of the line (0xe9) is not UTF-8",
    ),
    "no <unk>": (
        give_vocabulary([*SPECIAL[:3], "dog"]),
        "{}/vocab.json: word2idx has no <unk>; expected all four special words",
    ),
    "index out of range": (
        give_index([*range(11), 12]),
        "{}/index.npy: entry 11 is 12, expected 0 to 11",
    ),
    "index of another length": (
        give_index(range(13)),
        "{}/index.npy: found 13 entries, expected 12 (one per image) or 60 (one per caption)",
    ),
    "rate": (set_field("mismatch.rate", 1.0), "mismatch.rate is 1.0, expected 0 <= rate < 1"),
    "too many training images": (
        set_field("data.train_images", 13),
        "data.train_images is 13, expected 0 (all) to 12, the images of {}/train_ims.npy",
    ),
    "fewer than no images": (
        set_field("data.dev_images", -1),
        "data.dev_images is -1, expected 0 (all) to 5, the images of {}/dev_ims.npy",
    ),
    "batch": (
        set_field("train.batch_size", 61),
        "train: found 60 pairs, expected at least one batch of 61; lower train.batch_size",
    ),
}


def read_as_a_run(config: ConfigDict) -> None:
    for split in read_data(config, "nowhere").splits:
        list(image_batches(split, 4))


def problems_of(config: ConfigDict) -> list[str]:
    """Lines of the list, which is complete."""
    with pytest.raises(DataError) as error:
        check(config)
    first, *lines = str(error.value).splitlines()
    found = int(first.removeprefix("problems found: "))
    if "more like" not in str(error.value):
        assert found == len(lines)
    return [line.strip() for line in lines]


def test_what_is_right_is_accepted(config):
    read_as_a_run(config)
    assert "train: 12 images of 4 regions x 6 features, 60 captions, 5 an image" in check(config)


@pytest.mark.parametrize("fault", DAMAGES)
def test_a_run_refuses_and_check_lists(config, fault):
    damage, expected = DAMAGES[fault]
    expected = expected.format(config.data.path)
    damage(config)
    with pytest.raises((DataError, ConfigError)) as error:
        read_as_a_run(config)
    assert str(error.value).startswith(expected)
    (problem,) = problems_of(config)
    assert problem.startswith(expected)


def test_everything_wrong_is_listed_at_once(config):
    names = [
        *("truncated", "nan", "infinite", "dimensions", "empty caption", "not UTF-8"),
        *("no <unk>", "rate", "fewer than no images"),
    ]
    hidden = names.pop()  # no part of a split whose features cannot be read is looked at
    for name in [*names, hidden]:
        DAMAGES[name][0](config)
    expected = sorted(DAMAGES[name][1].format(config.data.path) for name in names)
    for line, start in zip(sorted(problems_of(config)), expected, strict=True):
        assert line.startswith(start)


def test_one_problem_hides_no_other(config):
    """Of values, of the data, of sizes."""
    wrong = {"precision": "fp8", "evaluation.protocol": "f30k-1k", "train.batch_size": 1000}
    config.update_from_flattened_dict({**wrong, "mismatch.rate": 1.5})
    assert [line.split()[0] for line in problems_of(config)] == [
        "precision:", "mismatch.rate", "train:", "evaluation.protocol:",
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
        ({"data.filter_scores": "", "data.filter_value": 2.0}, {"data.filter": "share"}),
        ({"train.batch_size": 0, "train.log_steps": 0, "data.test_split": "\0"}, {}),
        ({"data.max_words": None, "mismatch.rate": float("nan"), "train.batch_size": None}, {}),
    ],
)
def test_one_wrong_field_hides_no_other(config, wrong, also):
    config.update_from_flattened_dict({**wrong, **also})
    assert sorted(line.split()[0].rstrip(":") for line in problems_of(config)) == sorted(wrong)


def test_captions_that_cannot_be_read_hide_no_other_file(config):
    """Of the training pairs, what needs none of them is looked at."""
    set_line("train", 4, b"")(config)
    config.mismatch.file, config.data.filter = config.data.path + "/index.npy", "share"
    config.data.filter_scores, config.data.filter_value = config.data.path + "/scores.npy", 0.5
    first, *files = problems_of(config)
    assert "train_caps.txt:4: the caption is empty" in first
    assert files == [f"{config.data.path}/{name}.npy: no such file" for name in ("index", "scores")]
    np.save(config.mismatch.file, np.arange(12.0))
    np.save(config.data.filter_scores, np.where(np.arange(60) == 7, np.nan, 0.5))
    _, index, scores = problems_of(config)
    assert "index.npy: found float64 [12], expected one axis of integers" in index
    assert "scores.npy: entry 7 is nan, expected a number" in scores


def test_counts_hide_neither_each_other_nor_the_features(config):
    counts = np.array([4, 0, 3, 5, -1, 4, 1, 4, 4, 4, 4, 4])
    np.save(Path(config.data.path) / "train_regions.npy", counts)
    for row in (6, 7):  # of the first one, what is not finite lies after its one region
        set_row("train", row, np.nan)(config)
    assert [line.removeprefix(f"{config.data.path}/train_") for line in problems_of(config)] == [
        *(f"regions.npy: entry {n} is {counts[n]}, expected 1 to 4 regions" for n in (1, 3, 4)),
        "ims.npy: row 7 holds nan (region 1, dimension 2), expected finite numbers",
    ]


@pytest.mark.parametrize("take", ["train_images", "filter"])
def test_a_bad_caption_of_the_test_hides_no_small_training_split(config, take):
    config.train.batch_size = 24
    if take == "train_images":
        config.data.train_images = 4
    else:
        np.save(Path(config.data.path) / "scores.npy", np.arange(60))
        config.data.filter, config.data.filter_value = "score", 40.0
        config.data.filter_scores = config.data.path + "/scores.npy"
    small = "train: found 20 pairs, expected at least one batch of 24; lower train.batch_size"
    assert problems_of(config) == [small]
    set_line("test", 2, b"")(config)
    assert problems_of(config)[1:] == [small]


def test_the_split_that_differs_is_named_once(config):
    """Without the training captions, which say nothing of regions, no other split is blamed."""
    set_features("train", lambda x: x[:11])(config)
    set_features("dev", lambda x: x[:, :3])(config)
    count, regions = problems_of(config)
    assert "train_caps.txt: found 60 captions for the 11 images" in count
    assert "/dev_ims.npy: found 3 regions x 6 features, expected 4 x 6 as in" in regions
    assert regions.endswith("/train_ims.npy")


def test_many_problems_of_a_kind_are_counted(config):
    for line in range(3, 30):
        set_line("train", line, b"")(config)
    set_line("train", 40, b"\xff")(config)
    for row in range(9):
        set_row("train", row, np.nan)(config)
    lines = problems_of(config)
    empty = [line for line in lines if "the caption is empty" in line]
    assert [line.split(":")[1] for line in empty] == ["3", "4", "5", "6", "7"]
    assert sum("not UTF-8" in line for line in lines) == 1
    assert "... and 22 more like the last one" in lines
    assert "... and 4 more like the last one" in lines  # rows that are not finite
    with pytest.raises(DataError) as error:
        read_as_a_run(config)
    assert str(error.value).endswith(
        "train_caps.txt:3: the caption is empty, expected one caption a line "
        "(and 27 more problems: --mode=check lists them)"
    )


def test_captions_and_their_count_are_both_checked(config):
    set_lines("dev", lambda lines: [*lines[:-2], b""])(config)
    problems = problems_of(config)
    assert len(problems) == 2
    assert "dev_caps.txt:24: the caption is empty" in problems[0]
    assert "found 24 captions for the 5 images" in problems[1]


def fact(report: str, section: str, name: str) -> str:
    """What a section of the report says of something."""
    lines = report.split(section)[1].splitlines()[1:]
    return next(line for line in lines if line.strip().startswith(name)).split(name)[1].strip()


def test_facts_of_captions(config):
    set_line("test", 3, "bad\ufffd word".encode())(config)
    set_line("test", 8, b"bad\x07 word " + b"very " * 70 + b"long")(config)
    set_line("test", 9, b"a dog , train number 7")(config)
    give_vocabulary([*SPECIAL, "a", "dog", "number", ","])(config)
    report = check(config)
    assert fact(report, "test: 6", "broken characters") == "2: caption 3, caption 8"
    assert fact(report, "test: 6", "tokens of a caption") == (
        "4 to 75, median 8, 95% at most 8; 1 longer than 64, so clipped in training"
    )
    # 27 + 2 words of the others: "test" or "train" and a number each; 2; 73.
    unknown = 2 * 28 + 2 + 73
    words = 6 * 28 + 2 + 73
    assert fact(report, "test: 6", "unknown words").startswith(
        f"{unknown / words:.2%} of all; 35: very (70), test (27), word (2), "
    )
    assert fact(report, "both in train and in test", "captions") == "1: 'a dog , train number 7'"
    assert fact(report, "both in dev and in test", "captions") == "none"
    assert report.splitlines()[-1].startswith(
        "mismatch: protocol image, rate_asked 0.4, true_rate 0.3333, kept_share 0.6667"
    )


def test_facts_of_features(config):
    train = features_of(config, "train")
    train[..., 3] = 2.0
    train[4] = train[9]
    train[6], train[8] = 0.0, 2.0
    set_features("train", lambda _: train)(config)
    test = features_of(config, "test")
    test[5] = train[1]
    set_features("test", lambda _: test)(config)
    report = check(config)
    assert fact(report, "train: 12", "constant images") == "2: 6 (0), 8 (2)"
    assert fact(report, "train: 12", "repeated images") == "1: 9 = 4"
    assert fact(report, "test: 6", "repeated images") == "none"
    assert fact(report, "both in train and in test", "images") == "1: 1 = 5"
    assert fact(report, "both in train and in dev", "images") == "none"
    assert fact(report, "train: 12", "features") == (
        f"float32, each image stored once; mean {train.mean():.3g}, deviation {train.std():.3g}"
    )
    train[6, :, 3] = 2.0
    set_features("train", lambda _: train)(config)
    assert fact(check(config), "train: 12", "constant dimensions") == "1: 3 (2)"


def test_repeated_rows_are_compared_whole(config):
    stored = np.repeat(features_of(config, "dev"), 5, axis=0)
    set_features("dev", lambda _: stored)(config)
    assert "stored 5 times" in fact(check(config), "dev: 5", "features")
    many = np.repeat(np.random.default_rng(1).normal(size=(200, 4, 6)), 5, axis=0)
    many = many.astype(np.float32)
    many[1 * 5 + 3, 3, 0] += 1  # no sampled block, not the first region: a run does not look there
    set_features("dev", lambda _: many)(config)
    set_lines("dev", lambda lines: [b"a dog"] * 1000)(config)
    read_as_a_run(config)
    (problem,) = problems_of(config)
    assert "dev_ims.npy: rows 5 to 9 differ while most blocks of 5 rows" in problem


def test_check_reads_int8_features(config):
    scale = np.arange(1, 7, dtype=np.float32)
    for split, images in SIZES.items():
        stored = np.random.default_rng(images).integers(-128, 128, (images, 4, 6)).astype(np.int8)
        set_features(split, lambda _, stored=stored: stored)(config)
    np.save(Path(config.data.path) / "ims_scale.npy", scale)
    values = features_of(config, "train") * scale
    assert fact(check(config), "train: 12", "features") == (
        f"int8, each image stored once; mean {values.mean():.3g}, deviation {values.std():.3g}"
    )


def test_the_sum_of_problems_is_an_error_of_the_first_ones_type():
    error = DataError("first", "second", "third")
    assert isinstance(error, L2RMError) and error.args == ("first", "second", "third")
    assert str(error) == "first (and 2 more problems: --mode=check lists them)"
    assert str(DataError("only")) == "only"


def test_what_the_system_refuses_to_read_is_a_problem_of_the_data(tmp_path):
    problems = Problems()
    assert problems.attempt(Path.read_bytes, tmp_path) is None
    with pytest.raises(DataError, match=f"{tmp_path}: cannot be read: Is a directory"):
        problems.raise_all()
