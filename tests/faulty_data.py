"""A small valid data set, functions that damage it, and the message that each fault must give."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.config import default

SIZES = {"train": 12, "dev": 5, "test": 6}
SPECIAL = ["<pad>", "<start>", "<end>", "<unk>"]


def write_data_set(directory: Path) -> ConfigDict:
    """Write a small, valid data set and return its config.

    It has 4 regions x 6 features per image and 5 captions per image.
    """
    rng = np.random.default_rng(0)
    for split, images in SIZES.items():
        features = rng.normal(size=(images, 4, 6)).astype(np.float32)
        np.save(directory / f"{split}_ims.npy", features)
        lines = [f"a dog , {split} number {k}" for k in range(5 * images)]
        (directory / f"{split}_caps.txt").write_text("\n".join(lines) + "\n")
    config = default()
    config.data.name, config.data.path = "mine", str(directory)
    config.train.batch_size = 8
    return config


def load_features(config: ConfigDict, split: str) -> np.ndarray:
    return np.load(Path(config.data.path) / f"{split}_ims.npy")


# Each function below returns a function that damages the data set of a config, or the config.


def set_features(split: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable:
    def damage(config):
        features = change(load_features(config, split))
        np.save(Path(config.data.path) / f"{split}_ims.npy", features, allow_pickle=True)

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


# Fault -> function that damages the data or the config, and the start of the error message, in
# which {} stands for the directory of the data.
DAMAGES = {
    "method": (set_field("method", "l3rm"), "method: found 'l3rm'"),
    "head": (set_field("model.head", "sfa"), "model.head: found 'sfa'"),
    "a name within the method": (set_field("l2rm.solver", "x"), "l2rm.solver: found 'x'"),
    "precision": (set_field("precision", "fp8"), "precision: found 'fp8'"),
    "queue": (set_field("l2rm.queue_length", 7), "queue_length"),
    "no directory": (set_field("data.path", "/nowhere"), "/nowhere: "),
    "no path": (set_field("data.path", ""), "data.path: "),
    "no features": (remove("dev_ims.npy"), "{}/dev_ims.npy: no such file"),
    "no captions": (remove("test_caps.txt"), "{}: "),
    "rank": (
        set_features("train", lambda x: x[None]),
        "{}/train_ims.npy: found float32 [1, 12, 4, 6]",
    ),
    "dtype": (
        set_features("dev", lambda x: x.astype(int)),
        "{}/dev_ims.npy: found int64 [5, 4, 6]",
    ),
    "pickle": (
        set_features("dev", lambda x: np.array([{}])),
        "{}/dev_ims.npy: holds Python objects",
    ),
    "truncated": (truncate, "{}/dev_ims.npy: truncated: found 600 bytes"),
    "nan": (
        set_row("train", 7, np.nan),
        "{}/train_ims.npy: row 7: found nan (region 1, dimension 2)",
    ),
    "infinite": (
        set_row("test", 5, -np.inf),
        "{}/test_ims.npy: row 5: found -inf (region 1, dimension 2)",
    ),
    "beyond float32": (
        set_features("dev", lambda x: np.where(x == x[3, 2, 1], 1e300, x.astype(float))),
        "{}/dev_ims.npy: row 3: found 1e+300 (region 2, dimension 1)",
    ),
    "dimensions": (
        set_features("test", lambda x: x[..., :5]),
        "{0}/test_ims.npy: found 4 regions x 5 features",
    ),
    "regions": (
        set_features("dev", lambda x: x[:, :3]),
        "{0}/dev_ims.npy: found 3 regions x 6 features",
    ),
    "one caption too few": (
        set_lines("dev", lambda lines: lines[:-1]),
        "{0}/dev_caps.txt: found 24 captions",
    ),
    "fewer captions than images": (
        set_lines("dev", lambda lines: lines[:4]),
        "{0}/dev_caps.txt: found 4 captions",
    ),
    "empty caption": (set_line("train", 9, b" \r"), "{}/train_caps.txt:9: "),
    "not UTF-8": (set_line("test", 2, b"caf\xe9"), "{}/test_caps.txt:2: found the byte 0xe9 at"),
    "no <unk>": (give_vocabulary([*SPECIAL[:3], "dog"]), "{}/vocab.json: word2idx: found no <unk>"),
    "index out of range": (give_index([*range(11), 12]), "{}/index.npy: entry 11: found 12"),
    "index of another length": (give_index(range(13)), "{}/index.npy: found 13 entries"),
    "rate": (set_field("mismatch.rate", 1.0), "mismatch.rate"),
    "too many training images": (set_field("data.train_images", 13), "data.train_images: found 13"),
    "fewer than no images": (set_field("data.dev_images", -1), "data.dev_images: found -1"),
    "batch": (set_field("train.batch_size", 61), "train: found 60 pairs"),
}
