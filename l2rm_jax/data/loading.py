"""Image-caption pairs of a data set: reading, checking, and what a run trains and tests on."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from l2rm_jax.data import filters, mismatch
from l2rm_jax.data.mismatch import Mismatch
from l2rm_jax.data.pairs import Data, PairDataset, Tokens
from l2rm_jax.data.stored import (
    StoredSplit,
    check_alike,
    check_captions_alike,
    open_split,
    read_files,
)
from l2rm_jax.data.text import Splitter, Vocabulary, punkt, tokenize
from l2rm_jax.errors import ConfigError, DataError, Problems

_log = logging.getLogger(__name__)
VOCABULARY_FILE, INDEX_FILE = "vocabulary.json", "mismatch_index.npy"


def read_split(
    path: str | Path, split: str, vocabulary: Vocabulary, sentences: Splitter | None = None
) -> PairDataset:
    """Read `{split}_ims.npy` and `{split}_caps.txt` or `.tsv` of a directory: captions in words.

    Args:
      path: directory in the layout of SCAN and NCR.
      split: "train", "dev", "test", "testall".
      vocabulary: of the word indices.
      sentences: as in `text.tokenize`.

    Raises:
      DataError: a file is missing or is not what it should be; the message says where.
    """
    stored = read_files(path, split, in_words=True)
    return _pairs(stored, [vocabulary.encode(caption, sentences) for caption in stored.captions])


def load_data(data_config: Any, mismatch_config: Any, *, workdir: str | Path | None) -> Data:
    """Read (or generate) the three splits, with the run's vocabulary and mismatch.

    A run keeps its own `vocabulary.json` and `mismatch_index.npy` in `workdir` (see `keep_data`). A
    vocabulary that is there is used; an index that is there must be the one that the config asks
    for. Nothing is written.

    Args:
      data_config: the `data` part of the config.
      mismatch_config: the `mismatch` part.
      workdir: directory of the run; None for no run.

    Raises:
      DataError, ConfigError: a file is not what it should be, or contradicts another or what is in
        `workdir`; a field is missing or out of range. Every problem but those of the features'
        values is found, as far as the files can be read.
    """
    workdir = None if workdir is None else Path(workdir)
    problems = Problems()
    attempt = problems.attempt
    stored = [attempt(open_split, data_config, split) for split in split_names(data_config)]
    if stored[0]:  # without it, nothing says which of the others is wrong
        attempt(check_alike, [split.images for split in stored if split])
    attempt(check_captions_alike, [split for split in stored if split])
    stored[0] = attempt(_first, stored[0], data_config.train_images, field="data.train_images")
    first_of_dev = attempt(_first, stored[1], data_config.dev_images, field="data.dev_images")
    # These two are looked at even where the training pairs cannot be read.
    attempt(_check_mismatch, mismatch_config)
    attempt(_check_filter, data_config)
    found = attempt(_run_mismatch, mismatch_config, stored[0], workdir=workdir)
    kept = attempt(_kept_pairs, found, stored[0], config=data_config)
    in_words = not any(split and split.vectors is not None for split in stored)
    vocabulary = attempt(
        _known_vocabulary if in_words else _no_vocabulary, data_config.vocabulary, workdir=workdir
    )
    sentences = attempt(punkt) if data_config.split_sentences and in_words else None
    problems.refuse()

    if in_words:
        # Tokenizing is slow on large data: once, and after all else is known to be right.
        words = [[tokenize(caption, sentences) for caption in split.captions] for split in stored]
        vocabulary = vocabulary or Vocabulary.from_words(words[0] + words[1], data_config.min_count)
        tokens = [[vocabulary.encode_words(line) for line in lines] for lines in words]
    else:
        tokens = [split.vectors for split in stored]
    train, dev, test = map(_pairs, stored, tokens)
    train, dev = train.with_mismatch(found), dev.head(len(first_of_dev.images))
    if data_config.filter != "none":
        found = replace(found, filtered=filters.describe(data_config, train.matched, kept))
        train = train.take(kept)
    _log.info("mismatch: %s", found)
    return Data(train, dev, test, vocabulary, found)


def split_names(data_config: Any) -> tuple[str, str, str]:
    """What the training, validation and test splits are called."""
    return "train", "dev", data_config.test_split


def open_pairs(data_config: Any, split: str) -> PairDataset:
    """The images and captions of a split alone, without tokens.

    Raises:
      DataError, ConfigError: as `load_data`.
    """
    return _pairs(open_split(data_config, split), tokens=[])


def open_train(data_config: Any, mismatch_config: Any) -> PairDataset:
    """The training pairs alone, as `open_pairs`: of the first images, and filtered.

    What cannot be taken away is left, so that there are at least as many pairs as a run has.

    Raises:
      DataError, ConfigError: the images and captions themselves cannot be read.
    """
    attempt = Problems().attempt  # `load_data` tells of them
    stored = open_split(data_config, "train")
    few = attempt(_first, stored, data_config.train_images, field="data.train_images") or stored
    found = attempt(_run_mismatch, mismatch_config, few, workdir=None)
    kept = attempt(_kept_pairs, found, few, config=data_config)
    train = _pairs(few, tokens=few.captions)  # as many of them, which is all that is asked
    return train if kept is None else train.take(kept)


def keep_data(data: Data, workdir: str | Path) -> None:
    """Write the run's vocabulary and mismatch index to `workdir`, where they are not there yet."""
    vocabulary, index = Path(workdir) / VOCABULARY_FILE, Path(workdir) / INDEX_FILE
    if len(data.vocabulary) and not vocabulary.exists():
        data.vocabulary.write(vocabulary)
    if not index.exists():
        mismatch.write(data.mismatch, index)


def _pairs(stored: StoredSplit, tokens: Tokens) -> PairDataset:
    """Each caption stored with the image that it was written for."""
    own = stored.caption_image
    return PairDataset(stored.split, stored.images, stored.captions, tokens, own, own)


def _first(split: StoredSplit, images: int, field: str) -> StoredSplit:
    """The first so many images of a split; 0 is all."""
    if not 0 <= images <= len(split.images):
        raise ConfigError(
            f"{field} is {images}, expected 0 (all) to {len(split.images)}, the images of "
            f"{split.images.name}"
        )
    return split.head(images) if images else split


def _known_vocabulary(file: str, workdir: Path | None) -> Vocabulary | None:
    """The run's own vocabulary, or the given one; None where one is to be built."""
    own = None if workdir is None else workdir / VOCABULARY_FILE
    kept = Vocabulary.read(own) if own and own.exists() else None
    given = Vocabulary.read(file) if file else None
    if kept and given and kept != given:
        raise DataError(
            f"{own}: this run's vocabulary ({len(kept)} words) is not that of "
            f"{file} ({len(given)} words)"
        )
    return kept or given


def _no_vocabulary(file: str, workdir: Path | None) -> Vocabulary:
    """An empty one: captions are vectors."""
    if file:
        raise ConfigError(f"data.vocabulary: {file}, expected none, as the captions are vectors")
    if workdir is not None and (workdir / VOCABULARY_FILE).exists():
        raise DataError(
            f"{workdir / VOCABULARY_FILE}: this run's captions are words, and the data now have "
            "vectors ({split}_caps.npy); use another workdir or move the vectors away"
        )
    return Vocabulary({})


def _check_mismatch(config: Any) -> None:
    """Refuses what is wrong with the mismatch that is asked for, whatever the training pairs."""
    if not config.file:
        mismatch.check_settings(config.protocol, config.rate, config.seed, config.paired_images)
        return
    if config.paired_images or config.protocol == mismatch.SEMI_PAIRED:
        raise ConfigError(
            f"mismatch.paired_images is {config.paired_images} and mismatch.protocol "
            f"{config.protocol}, expected 0 and image or caption with mismatch.file: an index does "
            "not say which images are paired"
        )
    mismatch.open_index(config.file)


def _check_filter(config: Any) -> None:
    """Likewise of the filter."""
    filters.check_settings(config)
    if config.filter_scores:
        filters.open_scores(config.filter_scores)


def _kept_pairs(found: Mismatch, train: StoredSplit, config: Any) -> Int[np.ndarray, " kept"]:
    return filters.kept_pairs(config, found.stored_image == train.caption_image)


def _run_mismatch(config: Any, train: StoredSplit, workdir: Path | None) -> Mismatch:
    """The mismatch that the config asks for; equal to the one in `workdir`, if there is one."""
    if config.file:
        asked = mismatch.read(config.file, train.caption_image, len(train.images))
    else:
        asked = mismatch.generate(
            config.protocol,
            config.rate,
            config.seed,
            train.caption_image,
            len(train.images),
            config.paired_images,
        )
    if workdir is None or not (workdir / INDEX_FILE).exists():
        return asked
    own = workdir / INDEX_FILE
    kept = mismatch.read(own, train.caption_image, len(train.images))
    if not np.array_equal(kept.stored_image, asked.stored_image):
        raise DataError(
            f"{own}: this run's mismatch has a true rate of {kept.true_rate:.4f} and is another "
            f"than the config's ({asked.source}), which has {asked.true_rate:.4f}; it is never "
            f"overwritten: use another workdir or the run's own settings"
        )
    return asked
