"""Images and captions of a split, in whichever layout they are stored, before any vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from l2rm_jax.data import scenes, video
from l2rm_jax.data.captions import CaptionFile, caption_files, open_captions, parse_captions
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.repeats import undo_repeats
from l2rm_jax.errors import ConfigError, DataError, Problems

_VIDEO_LAYOUTS = {"dual_encoding": video.read_dual_encoding, "experts": video.read_experts}


@dataclass(frozen=True)
class StoredSplit:
    """Images and captions of a split; words are still text."""

    split: str
    images: RegionFeatures
    captions: list[str]
    caption_image: Int[np.ndarray, " pairs"]  # ascending
    vectors: RegionFeatures | None = None  # of the captions, where they are given by vectors

    def head(self, images: int) -> "StoredSplit":
        """The first so many images with their captions."""
        pairs = int(np.searchsorted(self.caption_image, images))
        return replace(
            self,
            images=self.images.head(images),
            captions=self.captions[:pairs],
            caption_image=self.caption_image[:pairs],
            vectors=None if self.vectors is None else self.vectors.head(pairs),
        )


def open_split(data_config: Any, split: str) -> StoredSplit:
    """A split of the data set that the `data` part of a config names; features stay on disk.

    Raises:
      DataError, ConfigError: a file is missing or not what it should be; a field does not fit.
    """
    if data_config.name == "scenes":
        return _scenes(data_config, split)
    if _in_precomp(data_config):
        return read_files(data_config.path, split)
    read = _VIDEO_LAYOUTS[data_config.layout]
    found = read(data_config.path, split, data_config.features, data_config.max_frames)
    return StoredSplit(split, found.videos, found.captions, found.caption_video)


def read_files(path: str | Path, split: str, in_words: bool = False) -> StoredSplit:
    """A split in the layout of SCAN and NCR. With `in_words`, no vectors of captions are read.

    Raises:
      DataError, ConfigError: as `open_split`; all that is wrong with the split's files at once.
    """
    problems = Problems()
    attempt = problems.attempt
    directory = _directory(path)
    images = attempt(RegionFeatures.read, _image_file(directory, split))
    stored, vectors = _caption_vector_file(directory, split), None
    as_vectors = stored.exists() and not in_words
    if as_vectors:
        vectors = attempt(RegionFeatures.read, stored)
    if as_vectors and not caption_files(directory, split):
        file = attempt(_places_of, vectors)
    else:
        file = attempt(open_captions, directory, split)
    captions = attempt(parse_captions, file)
    if as_vectors:
        attempt(_check_vector_count, file, vectors)
    images = attempt(_images_of, file, images)
    problems.refuse()
    return StoredSplit(split, images, captions, _evenly(captions, images), vectors)


def open_images(data_config: Any, split: str) -> RegionFeatures:
    """The features of a split alone, as they lie: repeated rows and all, impossible counts clipped.

    Raises:
      DataError, ConfigError: as `open_split`.
    """
    if _in_precomp(data_config):
        file = _image_file(_directory(data_config.path), split)
        return RegionFeatures.read(file, clip_counts=True)
    return open_split(data_config, split).images


def open_caption_vectors(data_config: Any, split: str) -> RegionFeatures | None:
    """Likewise the vectors of its captions; None where captions are words.

    Raises:
      DataError, ConfigError: as `open_split`.
    """
    if not _in_precomp(data_config):
        return None
    file = _caption_vector_file(_directory(data_config.path), split)
    return RegionFeatures.read(file, clip_counts=True) if file.exists() else None


def place_of(vectors: RegionFeatures, row: int) -> str:
    """What stands for a caption of which there is no text."""
    return f"{Path(vectors.name).name} row {row}"


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


def check_captions_alike(splits: Sequence[StoredSplit]) -> None:
    """Refuses splits of which only some have vectors as captions, or vectors of other sizes.

    Raises:
      DataError: names the splits that differ.
    """
    vectors = {split.split: split.vectors for split in splits if split.vectors is not None}
    if not vectors:
        return
    first = next(iter(vectors.values()))
    problems = [
        f"{split.split}: its captions are words, expected vectors ({split.split}_caps.npy) as in "
        f"{first.name}"
        for split in splits
        if split.vectors is None
    ] + [
        f"{other.name}: found vectors of {other.shape[2]} dimensions, expected {first.shape[2]} as "
        f"in {first.name}"
        for other in vectors.values()
        if other.shape[2] != first.shape[2]
    ]
    if problems:
        raise DataError(*problems)


def _in_precomp(config: Any) -> bool:
    """Whether the data are the files of SCAN and NCR.

    Raises:
      ConfigError: there is no such layout.
    """
    layouts = ("precomp", *_VIDEO_LAYOUTS)
    if config.layout not in layouts:
        raise ConfigError(f"data.layout: {config.layout!r} is none of {', '.join(layouts)}")
    return config.name != "scenes" and config.layout == "precomp"


def _scenes(config: Any, split: str) -> StoredSplit:
    if config.path:
        raise ConfigError(
            f"data.path is {config.path!r}, but data.name is 'scenes', which is generated; "
            "choose a config of files (--config=configs/f30k.py, say) or another data.name"
        )
    made = scenes.generate(getattr(config, f"scenes_{split}", 0), config.scenes_seed, split)
    images = RegionFeatures.from_array(made.features, f"scenes/{split}")
    return StoredSplit(split, images, made.captions, _evenly(made.captions, images))


def _directory(path: str | Path) -> Path:
    expected = "expected the directory of train_ims.npy and train_caps.txt (or .tsv), dev and test"
    if not path:
        raise ConfigError(f"data.path is empty; {expected}")
    if not Path(path).is_dir():
        raise DataError(f"{path}: no such directory; {expected}")
    return Path(path)


def _image_file(directory: Path, split: str) -> Path:
    return directory / f"{split}_ims.npy"


def _caption_vector_file(directory: Path, split: str) -> Path:
    return directory / f"{split}_caps.npy"


def _places_of(vectors: RegionFeatures) -> CaptionFile:
    places = [place_of(vectors, row).encode() for row in range(len(vectors))]
    return CaptionFile(Path(vectors.name), places)


def _check_vector_count(file: CaptionFile, vectors: RegionFeatures) -> None:
    if len(file.lines) != len(vectors):
        raise DataError(
            f"{file.path}: found {len(file.lines)} captions for the {len(vectors)} rows of "
            f"{vectors.name}, expected one for each"
        )


def _images_of(file: CaptionFile, images: RegionFeatures) -> RegionFeatures:
    """The images that the captions describe, each once."""
    captions = len(file.lines)
    # With one caption a row, rows may be repeats; a .tsv has one caption per image by design.
    if captions == len(images) and file.path.suffix != ".tsv":
        return undo_repeats(images)
    if captions % len(images):
        raise DataError(
            f"{file.path}: found {captions} captions for the {len(images)} images of "
            f"{images.name}, expected a multiple of the number of images"
        )
    return images


def _evenly(captions: list[str], images: RegionFeatures) -> Int[np.ndarray, " pairs"]:
    """The image of each caption, where all have the same number."""
    return np.arange(len(captions)) // (len(captions) // len(images))
