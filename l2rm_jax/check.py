"""Read a data set through and say what it holds, or all that is wrong with it: `--mode=check`."""

import hashlib
import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import load_data, open_pairs, open_train_pairs, split_names
from l2rm_jax.data.pairs import Data, PairDataset
from l2rm_jax.data.repeats import raise_if_blocks_differ
from l2rm_jax.data.stored import check_feature_shapes, open_caption_vectors, open_images
from l2rm_jax.data.text import Vocabulary, load_sentence_splitter, tokenize
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.evaluation.recall import describe_counts
from l2rm_jax.models import check_word_noise
from l2rm_jax.run.fields import with_valid_fields
from l2rm_jax.run.inputs import check_settings, check_test_size, check_train_size

SHOWN = 5  # examples of what there may be many of
_log = logging.getLogger(__name__)
_BLOCK_BYTES = 1 << 25
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
# The replacement character, and control characters: traces of a wrong conversion.
_BROKEN = re.compile(r"[\ufffd\x00-\x1f\x7f-\x9f]")


def check(config: Any) -> str:
    """What the data set of a run holds, after reading every feature and every caption.

    Nothing is written and no device is touched.

    Args:
      config: of the run, which is looked at too.

    Raises:
      DataError: all that a run would refuse, sooner or later, as one message of many lines.
    """
    problems = Problems()
    attempt = problems.attempt
    attempt(check_settings, config)
    # Fields that are known to be wrong must not add errors about the data.
    asked, config = config, with_valid_fields(config)
    data = attempt(load_data, config.data, config.mismatch, workdir=None)
    if data is None:  # what can be read is, even where something else is wrong
        names = split_names(config.data)
        train = attempt(open_train_pairs, config.data, config.mismatch)
        test = attempt(open_pairs, config.data, names[-1])
        images = [attempt(open_images, config.data, name) for name in names]
        vectors = [attempt(open_caption_vectors, config.data, name) for name in names]
    else:
        train, _, test = data.splits
        images = [split.images for split in data.splits]
        vectors = [None if len(data.vocabulary) else split.tokens for split in data.splits]
    in_words = all(each is None for each in vectors)
    attempt(check_word_noise, config.model, in_words=in_words)
    if config.train.batch_size == asked.train.batch_size:
        attempt(check_train_size, config, train)
    attempt(check_test_size, config, test)
    attempt(check_feature_shapes, [features for features in images if features is not None])
    scans = [
        SplitScan(attempt(scan_features, ims), attempt(scan_features, caps))
        for ims, caps in zip(images, vectors, strict=True)
    ]
    if problems.messages:
        raise DataError(_listing(problems.messages))
    return "\n".join(_report(data, scans, config.data))


@dataclass(frozen=True)
class FeatureScan:
    """What the features of a split hold.

    Attributes:
      mean: of all numbers.
      deviation: their standard deviation.
      constant_images: (image, value) of those that hold one value everywhere.
      constant_dimensions: (dimension, value) of those with one value in all regions of all images.
      repeated: (image, earlier image) with the same features.
      image_of: the first image with some features, by their hash.
    """

    mean: float
    deviation: float
    constant_images: list[tuple[int, float]]
    constant_dimensions: list[tuple[int, float]]
    repeated: list[tuple[int, int]]
    image_of: dict[bytes, int]


@dataclass(frozen=True)
class SplitScan:
    """What the features of a split hold; the captions' are None where these are words."""

    images: FeatureScan
    captions: FeatureScan | None


def scan_features(images: RegionFeatures) -> FeatureScan:
    """Read every stored row, each once and a few at a time.

    Raises:
      DataError: each row that is not finite, each image whose repeated rows are not all the same.
    """
    problems = Problems()
    stored, stride = replace(images, stride=1), images.stride
    rows, regions, dimensions = stored.shape
    _log.info("%s: reading %d rows, %.3g GB", images.name, rows, stored.array.nbytes / 1e9)
    block = max(1, _BLOCK_BYTES // (stride * regions * dimensions * 4)) * stride
    total = squares = 0.0
    constant_images, repeated, image_of = [], [], {}
    low, high = np.full(dimensions, np.inf), np.full(dimensions, -np.inf)
    numbers = 0
    for start in range(0, rows, block):
        here = np.arange(start, min(start + block, rows))
        features = problems.attempt(stored.rows, here)
        if features is None:
            continue
        repeats = features.reshape(-1, stride, regions * dimensions)
        different = (repeats[:, 1:] != repeats[:, :1]).any((1, 2))
        problems.attempt(raise_if_blocks_differ, images.name, start // stride + np.flatnonzero(different))
        features, counts = features[::stride], stored.region_counts(here[::stride])
        real = features[np.arange(regions) < counts[:, None]]  # zeros stand for the other regions
        numbers += real.size
        total += real.sum(dtype=np.float64)
        squares += np.square(real, dtype=np.float64).sum()
        low = np.minimum(low, real.min(0))
        high = np.maximum(high, real.max(0))
        for image, (row, count) in enumerate(zip(features, counts, strict=True), start // stride):
            if row[:count].min() == row[:count].max():
                constant_images.append((image, row[0, 0]))
            first = image_of.setdefault(hashlib.blake2b(row, digest_size=16).digest(), image)
            if first != image:
                repeated.append((image, first))
    problems.raise_all()
    mean = total / numbers
    deviation = max(0.0, squares / numbers - mean**2) ** 0.5
    constant = [(int(at), low[at]) for at in np.flatnonzero(low == high)]
    return FeatureScan(mean, deviation, constant_images, constant, repeated, image_of)


def _report(data: Data, scans: list[SplitScan], data_config: Any) -> Iterator[str]:
    size = len(data.vocabulary)
    yield f"vocabulary: {size} words" if size else "vocabulary: none, captions are vectors"
    described = list(zip(data.splits, scans, strict=True))
    for split, features in described:
        yield from _describe(split, features, data.vocabulary, data_config)
    for left, right in itertools.combinations(described, 2):
        yield from _shared(left, right)
    yield f"mismatch: {data.mismatch}"


def _describe(
    split: PairDataset, scans: SplitScan, vocabulary: Vocabulary, data_config: Any
) -> list[str]:
    features = scans.images
    images, _, dimensions = split.images.shape
    counts = split.images.region_counts(np.arange(images))
    fewest, most = counts.min(), counts.max()
    regions = f"{fewest} to {most}" if fewest < most else f"{most}"
    stored = "once" if split.images.stride == 1 else f"{split.images.stride} times"
    broken = [n for n, caption in enumerate(split.captions, 1) if _BROKEN.search(caption)]
    if scans.captions is None:
        captions = _of_words(split, vocabulary, data_config)
    else:
        captions = _of_vectors(split, scans.captions, data_config.max_words)
    title = (
        f"{split.split}: {images} images of {regions} regions x {dimensions} features, "
        f"{len(split)} captions, {describe_counts(split.captions_per_image)} an image"
    )
    return _section(
        title,
        {
            "features": f"{split.images.array.dtype}, each image stored {stored}; "
            f"mean {features.mean:.3g}, deviation {features.deviation:.3g}",
            "constant images": _some(f"{at} ({x:g})" for at, x in features.constant_images),
            "constant dimensions": _some(f"{at} ({x:g})" for at, x in features.constant_dimensions),
            "repeated images": _some(f"{at} = {first}" for at, first in features.repeated),
            **captions,
            "broken characters": _some(f"caption {n}" for n in broken),
        },
    )


def _of_words(split: PairDataset, vocabulary: Vocabulary, data_config: Any) -> dict[str, str]:
    sentences = load_sentence_splitter() if data_config.split_sentences else None
    words = Counter(word for caption in split.captions for word in tokenize(caption, sentences))
    unknown = Counter({word: n for word, n in words.items() if word not in vocabulary.word2idx})
    share = unknown.total() / words.total()
    return {
        "tokens of a caption": _lengths(split.lengths, data_config.max_words),
        "unknown words": f"{share:.2%} of all; "
        + _some(f"{word} ({count})" for word, count in unknown.most_common()),
    }


def _of_vectors(split: PairDataset, captions: FeatureScan, max_words: int) -> dict[str, str]:
    return {
        "caption vectors": f"{split.tokens.array.dtype} x {split.tokens.shape[2]}; "
        f"mean {captions.mean:.3g}, deviation {captions.deviation:.3g}",
        "vectors of a caption": _lengths(split.lengths, max_words),
        "constant captions": _some(f"{at} ({x:g})" for at, x in captions.constant_images),
        "repeated captions": _some(f"{at} = {first}" for at, first in captions.repeated),
    }


def _lengths(lengths: np.ndarray, most: int) -> str:
    return (
        f"{lengths.min()} to {lengths.max()}, median {np.median(lengths):g}, 95% at most "
        f"{np.quantile(lengths, 0.95, method='higher')}; {np.sum(lengths > most)} longer than "
        f"{most}, so clipped in training"
    )


def _shared(left: tuple[PairDataset, SplitScan], right: tuple[PairDataset, SplitScan]) -> list[str]:
    """What two splits have in common, though they should not."""
    (left_pairs, left_scan), (right_pairs, right_scan) = left, right
    if left_scan.captions is None:
        others = set(right_pairs.captions)
        captions = [repr(c) for c in dict.fromkeys(left_pairs.captions) if c in others]
    else:
        captions = _equal(left_scan.captions, right_scan.captions)
    return _section(
        f"both in {left_pairs.split} and in {right_pairs.split}:",
        {"images": _some(_equal(left_scan.images, right_scan.images)), "captions": _some(captions)},
    )


def _equal(left: FeatureScan, right: FeatureScan) -> list[str]:
    return [
        f"{row} = {right.image_of[key]}"
        for key, row in left.image_of.items()
        if key in right.image_of
    ]


def _section(title: str, facts: dict[str, str]) -> list[str]:
    return [title, *(f"  {name:<21}{value}" for name, value in facts.items())]


def _some(items: Iterable[object]) -> str:
    """How many, and the first few."""
    items = list(items)
    if not items:
        return "none"
    more = [f"{len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return f"{len(items)}: {', '.join([*map(str, items[:SHOWN]), *more])}"


def _listing(messages: Iterable[str]) -> str:
    """The messages, of those that differ only in their numbers the first few."""
    kinds: dict[str, list[str]] = {}
    for message in messages:
        kinds.setdefault(_NUMBER.sub("0", message), []).append(message)
    lines = [f"problems found: {sum(map(len, kinds.values()))}"]
    for alike in kinds.values():
        lines += alike[:SHOWN]
        if len(alike) > SHOWN:
            lines.append(f"... and {len(alike) - SHOWN} more like the last one")
    return "\n  ".join(lines)
