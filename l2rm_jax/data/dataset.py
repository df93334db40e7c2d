"""Image-caption pairs of a data set: reading, checking, and what a run trains and tests on."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32

from l2rm_jax.data import mismatch, scenes
from l2rm_jax.data.features import RegionFeatures, undo_repeats
from l2rm_jax.data.mismatch import Mismatch
from l2rm_jax.data.text import Vocabulary, punkt, tokenize
from l2rm_jax.errors import ConfigError, DataError

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
    """

    split: str
    images: RegionFeatures
    captions: list[str]
    tokens: list[Int32[np.ndarray, " words"]]
    caption_image: Int[np.ndarray, " pairs"]
    stored_image: Int[np.ndarray, " pairs"]
    captions_per_image: int

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def matched(self) -> Bool[np.ndarray, " pairs"]:
        """Which captions are stored with their own image."""
        return self.stored_image == self.caption_image

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
        return replace(self, stored_image=mismatch.stored_image)


@dataclass(frozen=True)
class Data:
    """Everything a run reads. Only the training split is mismatched."""

    train: PairDataset
    dev: PairDataset
    test: PairDataset
    vocabulary: Vocabulary
    mismatch: Mismatch


def read_split(path: str | Path, split: str, vocabulary: Vocabulary) -> PairDataset:
    """Read `{split}_ims.npy` and `{split}_caps.txt` or `.tsv` of a directory.

    Args:
      path: directory in the layout of SCAN and NCR.
      split: "train", "dev", "test", "testall".
      vocabulary: of the word indices.

    Raises:
      DataError: a file is missing or is not what it should be; the message says where.
    """
    raw = _read_files(Path(path), split)
    return raw.pairs([vocabulary.encode(caption) for caption in raw.captions])


def read_captions(path: str | Path, split: str) -> list[str]:
    """Captions of a split: the lines of `_caps.txt`, or the second column of `_caps.tsv`.

    Raises:
      DataError: no file or both, text that is not UTF-8, an empty caption, a wrong column count.
    """
    return _captions_of(_caption_file(Path(path), split))


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
      DataError: a file is not what it should be, or contradicts what is in `workdir`.
      ConfigError: a field is missing or out of range.
    """
    workdir = None if workdir is None else Path(workdir)
    splits = [_raw_split(data_config, split) for split in ("train", "dev", data_config.test_split)]
    if data_config.train_images:
        splits[0] = splits[0].head(data_config.train_images)
    # Tokenizing is slow on large data: once, and after every file is known to be there.
    sentences = punkt() if data_config.split_sentences else None
    words = [[tokenize(caption, sentences) for caption in split.captions] for split in splits]
    vocabulary = _run_vocabulary(data_config, words[0] + words[1], workdir)
    train, dev, test = (
        split.pairs([vocabulary.encode_words(line) for line in lines])
        for split, lines in zip(splits, words, strict=True)
    )
    if data_config.dev_images:
        dev = dev.head(data_config.dev_images)
    found = _run_mismatch(mismatch_config, train, workdir)
    _log.info("mismatch: %s", found.row())
    return Data(train.with_mismatch(found), dev, test, vocabulary, found)


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

    def head(self, images: int) -> "_RawSplit":
        captions = self.captions[: images * self.captions_per_image]
        return replace(self, images=self.images.head(images), captions=captions)

    def pairs(self, tokens: list[Int32[np.ndarray, " words"]]) -> PairDataset:
        own = np.arange(len(self.captions)) // self.captions_per_image
        return PairDataset(
            self.split, self.images, self.captions, tokens, own, own, self.captions_per_image
        )


def _raw_split(config: Any, split: str) -> _RawSplit:
    if config.name == "scenes":
        if config.path:
            raise ConfigError(
                f"data.path is {config.path!r}, but data.name is 'scenes', which is generated; "
                "choose a config of files (--config=configs/f30k.py, say) or another data.name"
            )
        made = scenes.generate(getattr(config, f"scenes_{split}", 0), config.scenes_seed, split)
        images = RegionFeatures.from_array(made.features, f"scenes/{split}")
        return _RawSplit(split, images, made.captions)
    if not config.path:
        raise ConfigError(
            "data.path is empty; expected the directory that holds train_ims.npy and "
            "train_caps.txt (or .tsv), and the same for dev and test"
        )
    return _read_files(Path(config.path), split)


def _read_files(path: Path, split: str) -> _RawSplit:
    if not path.is_dir():
        raise DataError(f"{path}: no such directory; expected one with {split}_ims.npy in it")
    images = RegionFeatures.read(path / f"{split}_ims.npy")
    source = _caption_file(path, split)
    captions = _captions_of(source)
    # With one caption a row, rows may be repeats; a .tsv has one caption per image by design.
    if len(captions) == len(images) and source.suffix == ".txt":
        images = undo_repeats(images)
    if len(captions) % len(images):
        raise DataError(
            f"{source}: found {len(captions)} captions for the {len(images)} images of "
            f"{images.name}, expected a multiple of the number of images"
        )
    return _RawSplit(split, images, captions)


def _caption_file(path: Path, split: str) -> Path:
    candidates = [path / f"{split}_caps{suffix}" for suffix in (".txt", ".tsv")]
    present = [file for file in candidates if file.is_file()]
    if len(present) != 1:
        found = "found both" if present else "found neither"
        raise DataError(f"{candidates[0]}, {candidates[1].name}: {found}, expected one of them")
    return present[0]


def _captions_of(source: Path) -> list[str]:
    lines = source.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":  # the end of the last line, not a line
        lines.pop()
    columns = 2 if source.suffix == ".tsv" else 1
    captions = [_caption(f"{source}:{n}", line, columns) for n, line in enumerate(lines, 1)]
    if not captions:
        raise DataError(f"{source}: the file is empty, expected one caption a line")
    return captions


def _caption(where: str, line: bytes, columns: int) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8"
        ) from error
    if columns == 2:
        fields = text.split("\t")
        if len(fields) != 2:
            raise DataError(f"{where}: found {len(fields)} columns, expected id, tab, caption")
        text = fields[1]
    if not text.strip():
        raise DataError(f"{where}: the caption is empty, expected one caption a line")
    return text.strip()


def _run_vocabulary(
    config: Any, words: Sequence[Sequence[str]], workdir: Path | None
) -> Vocabulary:
    """The given vocabulary, or the run's own, or one built from the training and dev captions."""
    own = None if workdir is None else workdir / VOCABULARY_FILE
    kept = Vocabulary.read(own) if own and own.exists() else None
    given = Vocabulary.read(config.vocabulary) if config.vocabulary else None
    if kept and given and kept != given:
        raise DataError(
            f"{own}: this run's vocabulary ({len(kept)} words) is not that of "
            f"{config.vocabulary} ({len(given)} words)"
        )
    return kept or given or Vocabulary.from_words(words, config.min_count)


def _run_mismatch(config: Any, train: PairDataset, workdir: Path | None) -> Mismatch:
    """The mismatch that the config asks for; equal to the one in `workdir`, if there is one."""
    if config.file:
        asked = mismatch.read(config.file, train.caption_image, len(train.images))
    else:
        asked = mismatch.generate(
            config.protocol, config.rate, config.seed, train.caption_image, len(train.images)
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
