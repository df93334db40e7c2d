"""Read a whole data set and report its contents, or all its problems: `l2rm check`."""

import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from l2rm_jax.audit.misaligned import read_sentences
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.layouts import check_feature_shapes, is_scenes
from l2rm_jax.data.layouts.precomp import check_directory, raise_if_blocks_differ, read_images
from l2rm_jax.data.loading import open_train_pairs, open_untokenized, split_names
from l2rm_jax.data.record import is_undivided
from l2rm_jax.data.run_words import describe_unknown
from l2rm_jax.data.split_files import split_file
from l2rm_jax.data.text import Vocabulary, load_sentence_splitter, tokenize
from l2rm_jax.data.train_pairs import Data, TrainPairs
from l2rm_jax.data.word_report import WordReport, report_words
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.evaluation.recall import describe_counts
from l2rm_jax.models import check_word_noise
from l2rm_jax.pretrained.tokenizer import Pieces
from l2rm_jax.run.inputs import (
    check_settings,
    check_test_size,
    check_train_size,
    load_run_data,
    with_valid_fields,
)
from l2rm_jax.run.pretrained import IMAGES

SHOWN = 5  # examples that a line of the report lists
_COPIES = 5  # images with the same picture from which on it is named
# The replacement character and control characters, which a wrong text encoding leaves behind.
_BROKEN = re.compile(r"[\ufffd\x00-\x1f\x7f-\x9f]")


def check(config: Any) -> str:
    """Read every feature and caption of a run's data set and summarise them.

    Writes nothing and uses no device.

    Args:
      config: config of the run; its fields are checked too.

    Returns:
      The report, several lines of text.

    Raises:
      DataError: everything in config and data that a run would refuse at some point, as one
        message of many lines.
    """
    problems = Problems()
    attempt = problems.attempt
    method = attempt(check_settings, config)
    # Fields that are known to be wrong must not add errors about the data.
    given, config = config, with_valid_fields(config)
    data = attempt(load_run_data, config, workdir=None)
    if data is None:  # some part cannot be read; check the others all the same
        names, in_pixels = split_names(config.data), IMAGES.is_used(config)
        if attempt(is_undivided, config.data.path):
            names = names[:1]
        train = attempt(open_train_pairs, config.data, config.mismatch, in_pixels)
        test = None
        if len(names) > 1:
            test = attempt(open_untokenized, config.data, names[-1], in_pixels)
        images, vectors = [], []
        directory = None if is_scenes(config.data) else attempt(check_directory, config.data.path)
        for name in names if directory else ():
            images.append(attempt(read_images, directory, name, in_pixels, clip_counts=True))
            file = split_file(directory, name, "vectors")
            file = file if file.exists() else None
            vectors.append(attempt(RegionFeatures.read, file, clip_counts=True))
    else:
        train, _, test = data.splits
        images = [split.images for split in data.splits]
        vectors = [None if len(data.vocabulary) else split.tokens for split in data.splits]
    in_words = all(each is None for each in vectors)
    bases = data.pretrained.bases if data and data.pretrained else None
    attempt(check_word_noise, config.model, in_words=in_words, bases=bases)
    if config.train.batch_size == given.train.batch_size:
        attempt(check_train_size, config, train, method=method)
    attempt(check_test_size, config, test)
    words = [
        report_words(split.split, split.captions, split.tokens, data.vocabulary)
        for split in (data.splits if data else ())
    ]
    for report in words:
        attempt(_check_words, report)
    attempt(check_feature_shapes, [features for features in images if features is not None])
    scans = [
        (attempt(scan, ims), attempt(scan, caps)) for ims, caps in zip(images, vectors, strict=True)
    ]
    problems.raise_list()
    lines = [*_report(data, scans, words, config.data)]
    if config.judgement.path:
        lines += [f"misaligned rows: {each}" for each in read_sentences(config.judgement.path)]
    return "\n".join(lines)


def _check_words(report: WordReport) -> None:
    if "unknown_words" in report.warnings:
        raise DataError(report.warnings["unknown_words"])


@dataclass(frozen=True)
class FeatureScan:
    """Statistics of the features of a split; rows of padding are left out.

    Attributes:
      mean: mean of all numbers.
      deviation: standard deviation of all numbers.
      constant_images: (image, value) for each image that holds a single value.
      constant_dimensions: (dimension, value) for each dimension that has the same value in all
        regions of all images; None for pictures.
      repeated: (image, first image with the same features) for each repeated image.
      image_of: hash of an image's features -> the first image with these features.
    """

    mean: float
    deviation: float
    constant_images: list[tuple[int, float]]
    constant_dimensions: list[tuple[int, float]] | None
    repeated: list[tuple[int, int]]
    image_of: dict[bytes, int]


# A split with the statistics of its images, and of its caption vectors; None if they are words.
_Scanned = tuple[TrainPairs, FeatureScan, FeatureScan | None]


def scan(images: RegionFeatures | Pixels) -> FeatureScan:
    """Compute statistics of all images; reads each stored row once, block by block.

    A constant picture has one colour, and places of pictures are not compared: a common frame is no
    mistake.

    Args:
      images: features or pictures, or caption vectors in the same form.

    Raises:
      DataError: lists each row that holds NaN or infinity, and each image that the file stores
        several times with different features.
    """
    problems, is_pixels, copies = Problems(), isinstance(images, Pixels), images.copies
    stored = images if copies == 1 else RegionFeatures.read(images.name)
    first_row = np.arange(len(images)) if copies == 1 else images.labels
    regions, dimensions = math.prod(images.shape[1:-1]), images.shape[-1]
    total = squares = 0.0
    constant_images, repeated, image_of = [], [], {}
    low, high = np.full(dimensions, np.inf), np.full(dimensions, -np.inf)
    numbers = 0
    for block in images.blocks():
        rows = (first_row[block, None] + np.arange(copies)).ravel()
        features = problems.attempt(stored.rows, rows)
        if features is None:
            continue
        repeats = features.reshape(-1, copies, regions * dimensions)
        different = (repeats[:, 1:] != repeats[:, :1]).any((1, 2))
        problems.attempt(raise_if_blocks_differ, images.name, first_row[block[different]] // copies)
        features = features[::copies].reshape(-1, regions, dimensions)
        counts = np.full(len(block), regions) if is_pixels else images.region_counts(block)
        values = features[np.arange(regions) < counts[:, None]]  # without rows of padding
        numbers += values.size
        total += values.sum(dtype=np.float64)
        squares += np.square(values, dtype=np.float64).sum()
        low = np.minimum(low, values.min(0))
        high = np.maximum(high, values.max(0))
        for image, row, count in zip(block, features, counts, strict=True):
            first_value = row[0] if is_pixels else row[0, 0]
            if (row[:count] == first_value).all():
                constant_images.append((image, np.mean(first_value)))
            first = image_of.setdefault(hashlib.blake2b(row, digest_size=16).digest(), image)
            if first != image:
                repeated.append((image, first))
    problems.raise_all()
    mean = total / numbers
    deviation = max(0.0, squares / numbers - mean**2) ** 0.5
    constant = [(int(at), low[at]) for at in np.flatnonzero(low == high)]
    return FeatureScan(
        mean, deviation, constant_images, None if is_pixels else constant, repeated, image_of
    )


def _report(
    data: Data, scans: list[tuple], words: list[WordReport], data_config: Any
) -> Iterator[str]:
    size = len(data.vocabulary)
    if data.pretrained is not None:
        yield f"pretrained: {data.pretrained}"
    if not isinstance(data.vocabulary, Pieces):
        yield f"vocabulary: {size} words" if size else "vocabulary: none, captions are vectors"
    if data.word_vectors is not None:
        yield f"word vectors: {describe_unknown(data.word_vectors)}"
    described = [(split, *both) for split, both in zip(data.splits, scans, strict=True)]
    for scanned, report in zip(described, words, strict=True):
        yield from _describe(scanned, report, data.vocabulary, data_config)
    for left, right in itertools.combinations(described, 2):
        yield from _shared_items(left, right)
    if data.mismatch.sentences():
        yield f"mismatch: {data.mismatch}"


def _describe(
    scanned: _Scanned, report: WordReport, vocabulary: Vocabulary | Pieces, data_config: Any
) -> list[str]:
    split, features, vectors = scanned
    images = len(split.images)
    stored = "once" if split.images.copies == 1 else f"{split.images.copies} times"
    broken = [n for n, caption in enumerate(split.captions, 1) if _BROKEN.search(caption)]
    if isinstance(vocabulary, Pieces):
        captions = _describe_pieces(split, vocabulary)
    elif vectors is None:
        captions = _describe_words(split, report, vocabulary, data_config)
    else:
        captions = _describe_vectors(split, vectors, data_config.max_words)
    title = (
        f"{split.split}: {images} images of {_describe_sizes(split.images)}, "
        f"{len(split)} captions, {describe_counts(split.captions_per_image)} per image"
    )
    dimensions = {}
    if (constant := features.constant_dimensions) is not None:
        dimensions["constant dimensions"] = _summary(f"{at} ({x:g})" for at, x in constant)
    return _section(
        title,
        {
            "features": f"{split.images.array.dtype}, each image stored {stored}; "
            f"mean {features.mean:.3g}, deviation {features.deviation:.3g}",
            "constant images": _summary(f"{at} ({x:g})" for at, x in features.constant_images),
            **dimensions,
            "repeated images": _summary(f"{at} = {first}" for at, first in features.repeated),
            "same picture": _summary(_frequent_pictures(split, features.repeated)),
            **captions,
            "broken characters": _summary(f"caption {n}" for n in broken),
        },
    )


def _describe_sizes(images: RegionFeatures | Pixels) -> str:
    if isinstance(images, Pixels):
        return "{} x {} pixels".format(*images.shape[1:3])
    counts = images.region_counts(np.arange(len(images)))
    fewest, most = counts.min(), counts.max()
    regions = f"{fewest} to {most}" if fewest < most else f"{most}"
    return f"{regions} regions x {images.shape[2]} features"


def _frequent_pictures(split: TrainPairs, repeated: list[tuple[int, int]]) -> list[str]:
    """Pictures of at least `_COPIES` images, the most frequent first, with all their captions."""
    copies = Counter(first for _, first in repeated)
    picture = np.arange(len(split.images))
    for at, first in repeated:
        picture[at] = first
    captions = np.bincount(picture[split.stored_image], minlength=len(picture))
    return [
        f"image {first} and {count} more under {captions[first]} captions"
        for first, count in copies.most_common()
        if count + 1 >= _COPIES
    ]


def _describe_words(
    split: TrainPairs, report: WordReport, vocabulary: Vocabulary, data_config: Any
) -> dict[str, str]:
    sentences = load_sentence_splitter() if data_config.split_sentences else None
    words = Counter(word for caption in split.captions for word in tokenize(caption, sentences))
    unknown = Counter({word: n for word, n in words.items() if word not in vocabulary.word2idx})
    share = unknown.total() / words.total()
    return {
        "tokens of a caption": _describe_lengths(split.lengths, data_config.max_words),
        "unknown words": f"{share:.2%} of all; "
        + _summary(f"{word} ({count})" for word, count in unknown.most_common()),
        **{f"caption {n} became": words for n, (_, words) in enumerate(report.examples, 1)},
        **({"warning": each} if (each := report.warnings.get("one_word")) else {}),
    }


def _describe_pieces(split: TrainPairs, pieces: Pieces) -> dict[str, str]:
    counts = pieces.counts(split.captions)
    lengths, share = split.lengths, counts.unknown.sum() / max(counts.read.sum(), 1)
    return {
        "tokens of a caption": f"{_describe_quantiles(lengths)}; {counts.is_cut.sum()} cut at "
        f"{pieces.limit}",
        "unknown pieces": f"{share:.2%} of all",
    }


def _describe_vectors(split: TrainPairs, captions: FeatureScan, max_words: int) -> dict[str, str]:
    return {
        "caption vectors": f"{split.tokens.array.dtype} x {split.tokens.shape[2]}; "
        f"mean {captions.mean:.3g}, deviation {captions.deviation:.3g}",
        "vectors of a caption": _describe_lengths(split.lengths, max_words),
        "constant captions": _summary(f"{at} ({x:g})" for at, x in captions.constant_images),
        "repeated captions": _summary(f"{at} = {first}" for at, first in captions.repeated),
    }


def _describe_lengths(lengths: np.ndarray, most: int) -> str:
    return (
        f"{_describe_quantiles(lengths)}; {np.sum(lengths > most)} longer than {most}, so clipped "
        "in training"
    )


def _describe_quantiles(lengths: np.ndarray) -> str:
    return (
        f"{lengths.min()} to {lengths.max()}, median {np.median(lengths):g}, 95% at most "
        f"{np.quantile(lengths, 0.95, method='higher')}"
    )


def _shared_items(left: _Scanned, right: _Scanned) -> list[str]:
    """Lines that list images and captions found in both splits."""
    (one, images, vectors), (other, other_images, other_vectors) = left, right
    if vectors is None:
        others = set(other.captions)
        captions = [repr(c) for c in dict.fromkeys(one.captions) if c in others]
    else:
        captions = _equal_rows(vectors, other_vectors)
    facts = {"images": _summary(_equal_rows(images, other_images)), "captions": _summary(captions)}
    return _section(f"both in {one.split} and in {other.split}:", facts)


def _equal_rows(left: FeatureScan, right: FeatureScan) -> list[str]:
    return [
        f"{row} = {right.image_of[key]}"
        for key, row in left.image_of.items()
        if key in right.image_of
    ]


def _section(title: str, facts: dict[str, str]) -> list[str]:
    return [title, *(f"  {name:<21}{value}" for name, value in facts.items())]


def _summary(items: Iterable[object]) -> str:
    """Number of items and the first few of them."""
    items = list(items)
    if not items:
        return "none"
    more = [f"{len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return f"{len(items)}: {', '.join([*map(str, items[:SHOWN]), *more])}"
