"""Assign each image, with all captions stored with it, to exactly one fold.

The fold depends only on a hash of the image's key and the seed, so adding images moves no other
image to another fold.
"""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from l2rm_jax.data.content_hashes import hash_keys
from l2rm_jax.errors import ConfigError, DataError


class Folds(NamedTuple):
    """Image, fold and group of each pair.

    Attributes:
      image_of: row of the image that each caption is stored with.
      image_fold: fold of each image, 0 to `count` - 1.
      image_group: group of each image; a group lies in one fold. Images of a group are never each
        other's known mismatches.
    """

    image_of: Int[np.ndarray, " pairs"]
    image_fold: Int[np.ndarray, " images"]
    image_group: Int[np.ndarray, " images"]

    @property
    def of_pair(self) -> Int[np.ndarray, " pairs"]:
        """Fold of each pair."""
        return self.image_fold[self.image_of]

    @property
    def group_of_pair(self) -> Int[np.ndarray, " pairs"]:
        """Group of each pair."""
        return self.image_group[self.image_of]

    @property
    def count(self) -> int:
        """Number of folds."""
        return int(self.image_fold.max()) + 1


def assign_folds(
    keys: Int[np.ndarray, " images"] | UInt64[np.ndarray, " images"] | Sequence[str],
    folds: int,
    seed: int,
) -> Int[np.ndarray, " images"]:
    """Assign each image to a fold, 0 to `folds` - 1; equal keys share a fold.

    Args:
      keys: a stable key of each image: its row, its name, or the key of its group if near
        duplicates have to stay together.
      folds: number of folds, at least 3: a nested model trains without two of them.
      seed: seed of the hash, 0 or more.

    Raises:
      ConfigError: fewer than 3 folds.
    """
    if folds < 3:
        raise ConfigError(f"folds: found {folds}, expected at least 3")
    hashes = hash_keys(keys, seed)
    return (hashes % np.uint64(folds)).astype(np.int64)


def has_groups(folds: Folds) -> bool:
    """Return whether every fold has captions of at least two groups of images."""
    with contextlib.suppress(DataError):
        check_folds(folds)
        return True
    return False


def check_folds(folds: Folds) -> None:
    """Check that every fold has captions of at least two groups of images.

    A pair is judged by comparison with images of its fold, so a single group cannot be judged.

    Raises:
      DataError: a fold has fewer groups.
    """
    stored = np.unique(folds.image_of)
    fold, group = folds.image_fold[stored], folds.image_group[stored]
    for number in range(folds.count):
        groups = np.unique(group[fold == number])
        if len(groups) < 2:
            # Fewer folds do not help if there are hardly any groups.
            more = "fewer folds or more images"
            advice = more if len(np.unique(group)) > 6 else "more images that differ"
            raise DataError(
                f"judging: fold {number} has captions of {len(groups)} of the {len(stored)} "
                f"images, expected at least 2; use {advice}"
            )
