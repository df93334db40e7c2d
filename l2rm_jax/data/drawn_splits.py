"""Draw splits by the contents of the images, for data that come as a single split.

An import without `--split` writes the single split `train`. A run on it draws its validation and
test images when it starts, and keeps in its work directory which they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt64

from l2rm_jax.data.content_hashes import hash_images
from l2rm_jax.data.files import check_entries, check_form, open_array
from l2rm_jax.data.pairs import Pairs, taken
from l2rm_jax.errors import DataError

SPLITS = ("train", "dev", "test")
SHARES = (0.1, 0.1)  # of the distinct images, in the dev and the test split that a run draws
FEWEST = 2  # distinct images of a split
INDEX_FILE = "split_index.npy"  # of a work directory


@dataclass(frozen=True, eq=False)
class Drawn:
    """The splits that a run draws from data with a single split.

    Attributes:
      whole: all pairs.
      split: [images] number of each image's split in `SPLITS`.
      rows: [pairs] row in `whole` of each training pair of the run.
    """

    whole: Pairs
    split: Int[np.ndarray, " images"]
    rows: Int[np.ndarray, " pairs"]

    def pairs_of(self, split: str) -> Pairs:
        """Return the pairs of a split.

        Raises:
          DataError: no run draws a split of this name.
        """
        if split not in SPLITS:
            raise DataError(
                f"{self.whole.name}: found the single split train, from which a run draws dev and "
                f"test, expected {split}; import with --split, or set data.test_split=test"
            )
        images = np.flatnonzero(self.split == SPLITS.index(split))
        return take_images(self.whole, images, split)

    def sentence(self) -> str:
        """Say how many images the run has drawn."""
        _, dev, test = np.bincount(self.split, minlength=len(SPLITS))
        return (
            f"dev ({dev:,} images) and test ({test:,}) were drawn from the {len(self.split):,} "
            f"images of the single split train ({INDEX_FILE})"
        )

    def take(self, pairs: Int[np.ndarray, " taken"]) -> "Drawn":
        """Return the same splits for some of the training pairs."""
        return replace(self, rows=self.rows[pairs])


def draw_run_splits(whole: Pairs, workdir: Path | None) -> Drawn:
    """Draw the splits of a run, or take those that it keeps in `workdir`.

    Args:
      whole: all pairs of the data, whose images are features or pictures.
      workdir: work directory of the run; None draws them afresh.

    Raises:
      DataError: there are too few distinct images, or the file in `workdir` is of other images.
    """
    file = None if workdir is None else workdir / INDEX_FILE
    if file is not None and file.exists():
        split, count = open_array(file), len(whole.images)
        is_index = split.dtype.kind in "iu" and split.shape == (count,)
        check_form(file, split, is_index, f"integers [{count}], one per image of {whole.name}")
        split = split.astype(np.int64)
        check_entries(file, split, (split >= 0) & (split < len(SPLITS)), "0 to 2")
    else:
        split = draw_splits(hash_images(whole.images), SHARES, whole.name)
    return Drawn(whole, split, rows_of_images(whole, np.flatnonzero(split == 0)))


def draw_splits(
    keys: UInt64[np.ndarray, " images"], shares: Sequence[float], name: str
) -> Int[np.ndarray, " images"]:
    """Return the split of each image: 1 for the first share, and so on, 0 for the other images.

    Equal images are in one split. The split of an image depends on its content, not on its row.

    Args:
      keys: hash of each image's content (`content_hashes.hash_images`).
      shares: share of the distinct images in each split but the first, each at least 2 images.
      name: name of the data, for the error message.

    Raises:
      DataError: there are too few distinct images for 2 per split.
    """
    distinct = np.unique(keys)
    ends = np.cumsum([max(FEWEST, round(share * len(distinct))) for share in shares])
    if len(distinct) - ends[-1] < FEWEST:
        raise DataError(
            f"{name}: found {len(distinct)} distinct images, expected at least "
            f"{FEWEST * (len(shares) + 1)}, and at least {FEWEST} for training beside "
            f"{' and '.join(f'{share:g}' for share in shares)} of them for the other splits"
        )
    place = np.searchsorted(distinct, keys)
    split = np.searchsorted(ends, place, side="right") + 1
    return np.where(split > len(shares), 0, split)


def rows_of_images(pairs: Pairs, images: Int[np.ndarray, " n"]) -> Int[np.ndarray, " taken"]:
    """Return the rows of the pairs of some images, sorted by image."""
    rows = np.flatnonzero(np.isin(pairs.image_of, images))
    return rows[np.argsort(pairs.image_of[rows], kind="stable")]


def take_images(pairs: Pairs, images: Int[np.ndarray, " n"], split: str) -> Pairs:
    """Return some images, given by ascending rows, with their captions, sorted by image."""
    chosen = pairs.take(rows_of_images(pairs, images))
    return replace(
        chosen,
        images=pairs.images.take(images),
        image_of=np.searchsorted(images, chosen.image_of),
        ids=taken(pairs.ids, images),
        pictures=None,
        split=split,
    )
