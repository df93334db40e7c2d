"""Assign images to folds, and collect the pairs of each fold, a sample and known mismatches.

Each image, with all captions stored with it, is in one fold, which depends only on a hash of its
key and the seed: adding images moves no other image to another fold. Within a fold, images and
captions are sorted by hashes of their contents, so random draws do not depend on their order.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt64

from l2rm_jax.data.content_hashes import hash_keys
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.judging.content_keys import Keys

REFERENCES = 1000  # most images and most captions in the sample of a fold
NEGATIVES = 10  # known mismatches per caption
_ENOUGH = 1_000_000  # known mismatches in total; with many pairs, each has fewer than `NEGATIVES`


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


class FoldPairs(NamedTuple):
    """The n pairs of a fold with its m images, and a sample of both that represents the fold.

    Pairs of one image are adjacent. Rows count the whole data set; places count within the fold or
    within the sample.

    Attributes:
      pairs: [n] row of the caption of each pair.
      images: [m] rows of the images.
      position: [n] place in `images` of the image of each pair, ascending.
      references: [R] places in `images` of the sampled images, ascending, without repetition.
      captions: [C] places in `pairs` of the sampled captions, likewise.
      replaced: [R] for each sampled image, the place in `pairs` of one of its captions, which a
        caption moved to the image replaces.
      wrong: [m, k] for each image, the k sampled images, as places in `references`, to which its
        captions are moved to make known mismatches.
    """

    pairs: Int[np.ndarray, " n"]
    images: Int[np.ndarray, " m"]
    position: Int[np.ndarray, " n"]
    references: Int[np.ndarray, " R"]
    captions: Int[np.ndarray, " C"]
    replaced: Int[np.ndarray, " R"]
    wrong: Int[np.ndarray, "m k"]


class Part(NamedTuple):
    """Some images of a fold with all their pairs, image by image.

    Attributes:
      pairs: [n] rows of the captions.
      images: [m] rows of the images.
      position: [n] place of the image of each pair in `images`, ascending.
      reference: [m] place of each image in the references of the fold, or -1.
      wrong: [n, k] places in the references of the wrong images of each pair.
    """

    pairs: Int[np.ndarray, " n"]
    images: Int[np.ndarray, " m"]
    position: Int[np.ndarray, " n"]
    reference: Int[np.ndarray, " m"]
    wrong: Int[np.ndarray, "n k"]


def part_of(here: FoldPairs, places: Int[np.ndarray, " m"]) -> Part:
    """Return some images of a fold, by their places in `here.images`, with all their pairs."""
    [(part, _)] = parts_of(here, [places])
    return part


def parts_of(
    here: FoldPairs, pieces: Iterable[Int[np.ndarray, " m"]]
) -> Iterator[tuple[Part, Int[np.ndarray, " n"]]]:
    """Yield parts of a fold, each with the places of its pairs in the fold.

    Args:
      here: the fold.
      pieces: places in `here.images` of the images of each part, without repetition.
    """
    counts = np.bincount(here.position, minlength=len(here.images))
    starts = np.cumsum(counts) - counts
    reference = np.full(len(here.images), -1)
    reference[here.references] = np.arange(len(here.references))
    for places in pieces:
        count = counts[places]
        position = np.repeat(np.arange(len(places)), count)
        at = np.arange(len(position)) + (starts[places] - np.cumsum(count) + count)[position]
        images, wrong = here.images[places], here.wrong[places][position]
        yield Part(here.pairs[at], images, position, reference[places], wrong), at


def fold_pairs(
    folds: Folds, keys: Keys, seed: int, some: Bool[np.ndarray, " pairs"] | None = None
) -> dict[int, FoldPairs]:
    """Collect the pairs of each fold, and draw its sample and its known mismatches.

    All folds have samples of the same size, limited by the smallest fold and by `REFERENCES`, so
    that they share compiled programs. A pair has `NEGATIVES` known mismatches, or fewer if the
    total would exceed a million.

    Args:
      folds: fold and group of each image; a known mismatch is never within a group.
      keys: content hashes, by which the pairs of a fold are sorted.
      seed: seed of the draws, 0 or more.
      some: [pairs] whether to use each pair; None: all.

    Returns:
      The pairs of each fold, by the number of the fold; a fold without pairs is left out.

    Raises:
      DataError: all sampled images of a fold are in one group.
    """
    rows = np.arange(len(folds.image_of)) if some is None else np.flatnonzero(some)
    count = int(np.clip(_ENOUGH // len(rows), 1, NEGATIVES))
    pair_fold = folds.of_pair[rows]
    found = {
        int(fold): keys.sort(rows[pair_fold == fold], folds.image_of) for fold in set(pair_fold)
    }
    some_images = min(REFERENCES, *(len(images) for _, images, _ in found.values()))
    some_pairs = min(REFERENCES, *(len(pairs) for pairs, _, _ in found.values()))
    drawn = {}
    for fold, (pairs, images, position) in sorted(found.items()):
        rng = np.random.default_rng([seed, fold])
        references = np.sort(rng.choice(len(images), some_images, replace=False))
        captions = np.sort(rng.choice(len(pairs), some_pairs, replace=False))
        counts = np.bincount(position)
        first = np.cumsum(counts) - counts
        replaced = first[references] + rng.integers(0, counts[references])
        groups = folds.image_group[images]
        wrong = draw_negatives(groups, groups[references], count, rng)
        drawn[fold] = FoldPairs(pairs, images, position, references, captions, replaced, wrong)
    return drawn


def first_pairs(here: FoldPairs, count: int) -> FoldPairs:
    """Return about `count` pairs of a fold with the same samples; all if there are no more.

    It takes the pairs whose images have the smallest hashes: a random sample that does not depend
    on the order of the data. The pairs and images of the samples are always included.
    """
    if len(here.pairs) <= count:
        return here
    pairs = np.unique(np.concatenate([np.arange(count), here.captions, here.replaced]))
    images = np.unique(np.concatenate([here.position[pairs], here.references]))
    return FoldPairs(
        here.pairs[pairs],
        here.images[images],
        np.searchsorted(images, here.position[pairs]),
        np.searchsorted(images, here.references),
        np.searchsorted(pairs, here.captions),
        np.searchsorted(pairs, here.replaced),
        here.wrong[images],
    )


def draw_negatives(
    groups: Int[np.ndarray, " images"],
    reference_groups: Int[np.ndarray, " references"],
    count: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "images count"]:
    """Draw references of another group for each image.

    Raises:
      DataError: all references are in one group.
    """
    if (reference_groups == reference_groups[0]).all():
        raise DataError(
            f"judging: found {len(groups)} images of one group in a fold, expected captions of at "
            "least two groups; use fewer folds or more images"
        )
    drawn = rng.integers(0, len(reference_groups), (len(groups), count))
    while (same := reference_groups[drawn] == groups[:, None]).any():
        drawn[same] = rng.integers(0, len(reference_groups), same.sum())
    return drawn
