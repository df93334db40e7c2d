"""Assign images to the splits train, dev and test."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from l2rm_jax.data.files import open_array
from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import ConfigError
from l2rm_jax.jobs.regular_files import has_file

SPLITS = ("train", "dev", "test")
GALLERY = (0.0, 0.0, 1.0)  # shares of images without captions
NONE = -1  # the split of an image that is left out
# Usual names of these splits; restval is the part of COCO's validation that is trained on.
_NAMES = {
    "train": ("train", "training", "trainval", "trainset", "restval"),
    "dev": ("dev", "devel", "development", "devset", "val", "valid", "validation", "minival"),
    "test": ("test", "testing", "testset", "devtest"),
}
_SPLIT_OF_NAME = {name: SPLITS.index(split) for split, names in _NAMES.items() for name in names}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def split_number(name: str) -> int:
    """Number of the split that a table, a data set or a file calls `name`; `NONE` for no split.

    The name may hold other words: `val2017`, `test_karpathy`, `data/validation-00001.parquet`. The
    file counts before its directories, and the first word that is a split before others.
    """
    for part in reversed(name.split("/")):
        words = [part.strip().lower(), *(word.lower() for word in _WORD.findall(part))]
        found = next((word for word in words if word in _SPLIT_OF_NAME), None)
        if found is not None:
            return _SPLIT_OF_NAME[found]
    return NONE


def parse_shares(text: str) -> tuple[float, float, float]:
    """The shares of train, dev and test, of `--split=0.8,0.1,0.1`.

    Raises:
      ConfigError: they are not three numbers of at least 0 that sum to 1.
    """
    try:
        shares = tuple(float(share) for share in text.split(","))
    except ValueError:
        shares = ()
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise ConfigError(
            f"--split: found {text!r}, expected the shares of train, dev and test, which sum to 1",
            hint="--split=0.8,0.1,0.1",
        )
    return shares


def rows_of_splits(directory: Path) -> dict[str, Int[np.ndarray, " captions"]]:
    """Row of the source of each caption, from 1, by split; empty without the training split."""
    files = {split: split_file(directory, split, "rows") for split in SPLITS}
    found = {split: np.array(open_array(file)) for split, file in files.items() if has_file(file)}
    return found if "train" in found else {}


def split_by_shares(
    digests: UInt8[np.ndarray, "images 16"], shares: Sequence[float], seed: int
) -> Int[np.ndarray, " images"]:
    """Number of the split of each image.

    Images with the same content fall into the same split. The order in which they are dealt out
    follows from content and seed alone, so the order of a table does not matter, and images that
    are added later move few others.

    Args:
      digests: hash of each image's content.
      shares: the shares of train, dev and test.
      seed: seed of the order.
    """
    contents, content_of, copies = np.unique(
        np.ascontiguousarray(digests).view("S16").ravel(), return_inverse=True, return_counts=True
    )
    salt = str(seed).encode()
    keys = [hashlib.blake2b(bytes(each), key=salt, digest_size=8).digest() for each in contents]
    order = np.argsort(np.frombuffer(b"".join(keys), ">u8"), kind="stable")
    middles = np.cumsum(copies[order]) - copies[order] / 2
    ends = np.cumsum(shares) * len(digests)
    split_of_content = np.empty(len(contents), np.int64)
    split_of_content[order] = np.searchsorted(ends[:-1], middles, side="right")
    return split_of_content[content_of]
