"""Image-caption pairs of a data set: reading, checking, and what a run trains and tests on."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32

from l2rm_jax.data import mismatch, scenes
from l2rm_jax.data.captions import CaptionFile, open_captions, parse_captions
from l2rm_jax.data.features import RegionFeatures, undo_repeats
from l2rm_jax.data.mismatch import Mismatch
from l2rm_jax.data.text import Splitter, Vocabulary, punkt, tokenize
from l2rm_jax.errors import ConfigError, DataError, Problems

_log = logging.getLogger(__name__)
VOCABULARY_FILE, INDEX_FILE = "vocabulary.json", "mismatch_index.npy"


@dataclass(frozen=True)
class PairDataset:
    """The pairs of one split: caption k and the image that it is stored with.

    Attributes:
      split: its name.
      images: features, each image once.
      captions: [pairs] raw text, the captions of an image in a row.
      tokens: [pairs] word indices of each caption, `<start>` and `<end>` included.
      caption_image: [pairs] row of the image that the caption was written for.
      stored_image: [pairs] row of the image that it is stored with; the same unless mismatched.
      captions_per_image: pairs / images.
      unpaired: [images] which images are known to be stored with captions at random; None where
        nothing is known.
    """

    split: str
    images: RegionFeatures
    captions: list[str]
    tokens: list[Int32[np.ndarray, " words"]]
    caption_image: Int[np.ndarray, " pairs"]
    stored_image: Int[np.ndarray, " pairs"]
    captions_per_image: int
    unpaired: Bool[np.ndarray, " images"] | None = None

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def matched(self) -> Bool[np.ndarray, " pairs"]:
        """Which captions are stored with their own image."""
        return self.stored_image == self.caption_image

    @property
    def paired(self) -> Bool[np.ndarray, " pairs"]:
        """Which pairs a method may trust: all but those known to be stored at random."""
        if self.unpaired is None:
            return np.ones(len(self), bool)
        return ~self.unpaired[self.stored_image]

    def head(self, images: int) -> "PairDataset":
        """The first `images` images with their captions, before any mismatch.

        Raises:
          DataError: there are fewer images, or captions are mismatched already.
        """
        if not self.matched.all():
            raise DataError(f"{self.split}: take the first images before mismatching captions")
        pairs = images * self.captions_per_image
        return replace(
            self,
            images=self.images.head(images),
            captions=self.captions[:pairs],
            tokens=self.tokens[:pairs],
            caption_image=self.caption_image[:pairs],
            stored_image=self.stored_image[:pairs],
        )

    def with_mismatch(self, mismatch: Mismatch) -> "PairDataset":
        """The same captions stored with the images that `mismatch` says."""
        if len(mismatch.stored_image) != len(self) or mismatch.image_count != len(self.images):
            raise DataError(
                f"{self.split}: mismatch of {len(mismatch.stored_image)} captions and "
                f"{mismatch.image_count} images, expected {len(self)} and {len(self.images)}"
            )
        return replace(self, stored_image=mismatch.stored_image, unpaired=mismatch.unpaired)


@dataclass(frozen=True)
class Data:
    """Everything a run reads. Only the training split is mismatched."""

    train: PairDataset
    dev: PairDataset
    test: PairDataset
    vocabulary: Vocabulary
    mismatch: Mismatch

    @property
    def splits(self) -> tuple[PairDataset, PairDataset, PairDataset]:
        """Training, validation and test split."""
        return self.train, self.dev, self.test


def read_split(
    path: str | Path, split: str, vocabulary: Vocabulary, sentences: Splitter | None = None
) -> PairDataset:
    """Read `{split}_ims.npy` and `{split}_caps.txt` or `.tsv` of a directory.

    Args:
      path: directory in the layout of SCAN and NCR.
      split: "train", "dev", "test", "testall".
      vocabulary: of the word indices.
      sentences: as in `text.tokenize`.

    Raises:
      DataError: a file is missing or is not what it should be; the message says where.
    """
    raw = _read_files(path, split)
    return raw.pairs([vocabulary.encode(caption, sentences) for caption in raw.captions])


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
        values is found.
    """
    workdir = None if workdir is None else Path(workdir)
    problems = Problems()
    attempt = problems.attempt
    raw = [attempt(_raw_split, data_config, split) for split in split_names(data_config)]
    attempt(check_alike, [split.images for split in raw if split])
    raw[0] = attempt(_first, raw[0], data_config.train_images, field="data.train_images")
    first_of_dev = attempt(_first, raw[1], data_config.dev_images, field="data.dev_images")
    asked = mismatch_config
    if not asked.file:  # looked at even where the training pairs cannot be read
        settings = (asked.protocol, asked.rate, asked.seed, asked.paired_images)
        attempt(mismatch.check_settings, *settings)
    found = attempt(_run_mismatch, asked, raw[0], workdir=workdir)
    vocabulary = attempt(_known_vocabulary, data_config.vocabulary, workdir=workdir)
    sentences = attempt(punkt) if data_config.split_sentences else None
    problems.refuse()

    # Tokenizing is slow on large data: once, and after all else is known to be right.
    words = [[tokenize(caption, sentences) for caption in split.captions] for split in raw]
    vocabulary = vocabulary or Vocabulary.from_words(words[0] + words[1], data_config.min_count)
    train, dev, test = (
        split.pairs([vocabulary.encode_words(line) for line in lines])
        for split, lines in zip(raw, words, strict=True)
    )
    _log.info("mismatch: %s", found.row())
    return Data(
        train.with_mismatch(found), dev.head(len(first_of_dev.images)), test, vocabulary, found
    )


def split_names(data_config: Any) -> tuple[str, str, str]:
    """What the training, validation and test splits are called."""
    return "train", "dev", data_config.test_split


def open_images(data_config: Any, split: str) -> RegionFeatures:
    """The features of a split alone, as they lie: repeated rows and all.

    Raises:
      DataError, ConfigError: as `load_data`.
    """
    if data_config.name == "scenes":
        return _scenes(data_config, split).images
    return RegionFeatures.read(_image_file(_directory(data_config.path), split))


def check_alike(images: Sequence[RegionFeatures]) -> None:
    """Refuses splits that differ in regions or dimensions: one model encodes them all.

    Raises:
      DataError: names the file that differs from the first.
    """
    problems = [
        f"{other.name}: found {other.shape[1]} regions x {other.shape[2]} features, expected "
        f"{images[0].shape[1]} x {images[0].shape[2]} as in {images[0].name}"
        for other in images[1:]
        if other.shape[1:] != images[0].shape[1:]
    ]
    if problems:
        raise DataError(*problems)


def keep_data(data: Data, workdir: str | Path) -> None:
    """Write the run's vocabulary and mismatch index to `workdir`, where they are not there yet."""
    vocabulary, index = Path(workdir) / VOCABULARY_FILE, Path(workdir) / INDEX_FILE
    if not vocabulary.exists():
        data.vocabulary.write(vocabulary)
    if not index.exists():
        mismatch.write(data.mismatch, index)


@dataclass(frozen=True)
class _RawSplit:
    """Images and captions of a split, before there is a vocabulary."""

    split: str
    images: RegionFeatures
    captions: list[str]

    @property
    def captions_per_image(self) -> int:
        return len(self.captions) // len(self.images)

    @property
    def caption_image(self) -> Int[np.ndarray, " pairs"]:
        return np.arange(len(self.captions)) // self.captions_per_image

    def head(self, images: int) -> "_RawSplit":
        captions = self.captions[: images * self.captions_per_image]
        return replace(self, images=self.images.head(images), captions=captions)

    def pairs(self, tokens: list[Int32[np.ndarray, " words"]]) -> PairDataset:
        own = self.caption_image
        return PairDataset(
            self.split, self.images, self.captions, tokens, own, own, self.captions_per_image
        )


def _raw_split(config: Any, split: str) -> _RawSplit:
    return _scenes(config, split) if config.name == "scenes" else _read_files(config.path, split)


def _scenes(config: Any, split: str) -> _RawSplit:
    if config.path:
        raise ConfigError(
            f"data.path is {config.path!r}, but data.name is 'scenes', which is generated; "
            "choose a config of files (--config=configs/f30k.py, say) or another data.name"
        )
    made = scenes.generate(getattr(config, f"scenes_{split}", 0), config.scenes_seed, split)
    images = RegionFeatures.from_array(made.features, f"scenes/{split}")
    return _RawSplit(split, images, made.captions)


def _read_files(path: str | Path, split: str) -> _RawSplit:
    problems = Problems()
    directory = _directory(path)
    images = problems.attempt(RegionFeatures.read, _image_file(directory, split))
    file = problems.attempt(open_captions, directory, split)
    captions = problems.attempt(parse_captions, file)
    images = problems.attempt(_images_of, file, images)
    problems.refuse()
    return _RawSplit(split, images, captions)


def _image_file(directory: Path, split: str) -> Path:
    return directory / f"{split}_ims.npy"


def _directory(path: str | Path) -> Path:
    expected = "expected the directory of train_ims.npy and train_caps.txt (or .tsv), dev and test"
    if not path:
        raise ConfigError(f"data.path is empty; {expected}")
    if not Path(path).is_dir():
        raise DataError(f"{path}: no such directory; {expected}")
    return Path(path)


def _images_of(file: CaptionFile, images: RegionFeatures) -> RegionFeatures:
    """The images that the captions describe, each once."""
    captions = len(file.lines)
    # With one caption a row, rows may be repeats; a .tsv has one caption per image by design.
    if captions == len(images) and file.path.suffix == ".txt":
        return undo_repeats(images)
    if captions % len(images):
        raise DataError(
            f"{file.path}: found {captions} captions for the {len(images)} images of "
            f"{images.name}, expected a multiple of the number of images"
        )
    return images


def _first(split: _RawSplit, images: int, field: str) -> _RawSplit:
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


def _run_mismatch(config: Any, train: _RawSplit, workdir: Path | None) -> Mismatch:
    """The mismatch that the config asks for; equal to the one in `workdir`, if there is one."""
    if config.file and config.paired_images:
        raise ConfigError(
            f"mismatch.paired_images is {config.paired_images}, expected 0 with mismatch.file: an "
            "index does not say which images are paired"
        )
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
