"""Open the images and captions of one split before captions are tokenized."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from l2rm_jax.data import scenes
from l2rm_jax.data.captions import CaptionFile, caption_files, open_captions, parse_captions
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.files import check_entries, check_form, open_array
from l2rm_jax.data.pixels import Pixels
from l2rm_jax.data.repeats import undo_repeats
from l2rm_jax.data.shards import have_vectors
from l2rm_jax.errors import ConfigError, DataError, Problems, nearest_flag

Images = RegionFeatures | Pixels
SCENES = "scenes"  # the built-in data set; files have the layout of SCAN and NCR


@dataclass(frozen=True)
class StoredSplit:
    """Images and captions of a split; the captions are still text."""

    split: str  # name of the split
    images: Images
    captions: list[str]
    caption_image: Int[np.ndarray, " pairs"]  # image row of each caption, ascending
    vectors: RegionFeatures | None = None  # word vectors of the captions, if the data have them

    def head(self, images: int) -> "StoredSplit":
        """Return the first `images` images with their captions."""
        pairs = int(np.searchsorted(self.caption_image, images))
        return replace(
            self,
            images=self.images.head(images),
            captions=self.captions[:pairs],
            caption_image=self.caption_image[:pairs],
            vectors=None if self.vectors is None else self.vectors.head(pairs),
        )


def open_split(
    data_config: Any, split: str, in_words: bool = False, in_pixels: bool = False
) -> StoredSplit:
    """Open a split of the data set that the `data` part of a config describes.

    Features stay on disk. With `in_words`, caption vectors are ignored. With `in_pixels`, the
    images are pictures, and features are ignored.

    Raises:
      DataError: a file is missing or invalid.
      ConfigError: a field does not fit the data set.
    """
    if not is_scenes(data_config):
        return read_files(data_config.path, split, in_words, in_pixels)
    if in_pixels:
        raise ConfigError(
            f"data.name: found {SCENES!r}, whose images are features, expected a directory with "
            "pictures (train_pixels.npy) for the pretrained image encoder"
        )
    return _generate_scenes(data_config, split)


def is_scenes(data_config: Any) -> bool:
    """Whether the data are the built-in data set; data in a directory never are."""
    return data_config.name == SCENES and not data_config.path


def read_files(
    path: str | Path, split: str, in_words: bool = False, in_pixels: bool = False
) -> StoredSplit:
    """Open a split in the layout of SCAN and NCR: `{split}_ims.npy` and its captions.

    Captions are `{split}_caps.npy` (vectors), if that file exists, else `{split}_caps.txt` or
    `.tsv`. If both exist, the text is kept for display. `{split}_pairs.npy`, if it exists, has the
    image row of each caption; without it, all images have the same number of captions.

    Args:
      path: directory of the files.
      split: "train", "dev", "test", "testall".
      in_words: ignore caption vectors.
      in_pixels: read `{split}_pixels.npy` instead of the features.

    Raises:
      DataError, ConfigError: as `open_split`; lists every problem of the split's files.
    """
    problems = Problems()
    attempt = problems.attempt
    directory = _check_directory(path)
    images = attempt(read_images, directory, split, in_pixels)
    vector_file, vectors = _caption_vector_file(directory, split), None
    as_vectors = vector_file.exists() and not in_words
    if as_vectors:
        vectors = attempt(RegionFeatures.read, vector_file)
    if as_vectors and not caption_files(directory, split):
        file = attempt(_placeholder_captions, vectors)
    else:
        file = attempt(open_captions, directory, split, or_vectors=not in_words)
    captions = attempt(parse_captions, file)
    if as_vectors:
        attempt(_check_vector_count, file, vectors)
    pair_file = directory / f"{split}_pairs.npy"
    if pair_file.exists():
        caption_image = attempt(_read_pairs, file, images, path=pair_file)
    else:
        images = attempt(_described_images, file, images)
        caption_image = attempt(_equal_blocks, file, images)
    problems.raise_all()
    return StoredSplit(split, images, captions, caption_image, vectors)


def open_images(data_config: Any, split: str, in_pixels: bool = False) -> Images:
    """Open only the images of a split, to check them when the captions cannot be read.

    Repeated rows are kept, and region counts that are out of range are clipped.

    Raises:
      DataError, ConfigError: as `open_split`.
    """
    if not is_scenes(data_config):
        directory = _check_directory(data_config.path)
        return read_images(directory, split, in_pixels, clip_counts=True)
    return open_split(data_config, split, in_pixels=in_pixels).images


def read_images(
    directory: str | Path, split: str, in_pixels: bool, clip_counts: bool = False
) -> Images:
    """Open the features of a split, or its pictures.

    Args:
      directory: directory of the files.
      split: name of the split.
      in_pixels: whether to open the pictures.
      clip_counts: as in `RegionFeatures.read`.

    Raises:
      DataError: the file is missing or invalid.
    """
    features, pixels = (Path(directory) / f"{split}_{kind}.npy" for kind in ("ims", "pixels"))
    wanted, other = (pixels, features) if in_pixels else (features, pixels)
    if other.exists() and not wanted.exists():
        needs = "pictures (l2rm import --encoder=pixels:DIR)" if in_pixels else "features"
        raise DataError(
            f"{wanted}: found only {other.name}, expected {needs}",
            hint=None if in_pixels else "--pretrained=DIR of a model that encodes pictures",
        )
    if in_pixels:
        return Pixels.read(pixels)
    return RegionFeatures.read(features, clip_counts=clip_counts)


def has_pixels(directory: str | Path) -> bool:
    """Whether a directory has pictures to train on."""
    return (Path(directory) / "train_pixels.npy").is_file()


def open_caption_vectors(data_config: Any, split: str) -> RegionFeatures | None:
    """Open only the caption vectors of a split, with counts clipped; None if captions are words.

    Raises:
      DataError, ConfigError: as `open_split`.
    """
    if is_scenes(data_config):
        return None
    file = _caption_vector_file(_check_directory(data_config.path), split)
    return RegionFeatures.read(file, clip_counts=True) if file.exists() else None


def caption_placeholder(vectors: RegionFeatures, row: int) -> str:
    """Placeholder text for a caption that only has vectors: its row in the file."""
    return f"{Path(vectors.name).name} row {row}"


def check_feature_shapes(images: Sequence[Images]) -> None:
    """Check that all splits have the same number of regions and dimensions, or size of pictures.

    Raises:
      DataError: lists every file that differs from the first.
    """
    problems = [
        f"{other.name}: found {other.shape[1]} {_units(other)}, expected {images[0].shape[1]} x "
        f"{images[0].shape[2]}, as in {images[0].name}"
        for other in images[1:]
        if other.shape[1:] != images[0].shape[1:]
    ]
    if problems:
        raise DataError(*problems)


def _units(images: Images) -> str:
    of, unit = ("", "pixels") if isinstance(images, Pixels) else ("regions ", "features")
    return f"{of}x {images.shape[2]} {unit}"


def check_caption_kinds(splits: Sequence[StoredSplit]) -> None:
    """Check that the captions of all splits are words, or vectors with the same dimensions.

    Raises:
      DataError: lists every split that differs.
    """
    vectors = {split.split: split.vectors for split in splits if split.vectors is not None}
    if not vectors:
        return
    first = next(iter(vectors.values()))
    problems = [
        f"{split.split}: found words as captions, expected vectors ({split.split}_caps.npy), as in "
        f"{first.name}"
        for split in splits
        if split.vectors is None
    ] + [
        f"{other.name}: found vectors of {other.shape[2]} dimensions, expected {first.shape[2]}, "
        f"as in {first.name}"
        for other in vectors.values()
        if other.shape[2] != first.shape[2]
    ]
    if problems:
        raise DataError(*problems)


def _generate_scenes(config: Any, split: str) -> StoredSplit:
    made = scenes.generate(getattr(config, f"scenes_{split}", 0), config.scenes_seed, split)
    images = RegionFeatures.from_array(made.features, f"scenes/{split}")
    caption_image = np.arange(len(made.captions)) // (len(made.captions) // len(images))
    return StoredSplit(split, images, made.captions, caption_image)


def _check_directory(path: str | Path) -> Path:
    expected = (
        "expected the directory of train_ims.npy, train_caps.txt (or .tsv, .npy), dev and test"
    )
    if not path:
        raise ConfigError(f"data.path: empty; {expected}", hint="--data=DIR")
    if not Path(path).is_dir():
        raise DataError(f"{path}: no such directory; {expected}", hint=nearest_flag("data", path))
    if have_vectors(path):
        raise DataError(
            f"{path}: found vectors in shards; {expected}",
            hint=f"l2rm import --source={shlex.quote(str(path))} --out=DATA",
        )
    return Path(path)


def _caption_vector_file(directory: Path, split: str) -> Path:
    return directory / f"{split}_caps.npy"


def _placeholder_captions(vectors: RegionFeatures) -> CaptionFile:
    lines = [caption_placeholder(vectors, row).encode() for row in range(len(vectors))]
    return CaptionFile(Path(vectors.name), lines)


def _check_vector_count(file: CaptionFile, vectors: RegionFeatures) -> None:
    if len(file.lines) != len(vectors):
        raise DataError(
            f"{file.path}: found {len(file.lines)} captions for the {len(vectors)} rows of "
            f"{vectors.name}, expected one per row"
        )


def _described_images(file: CaptionFile, images: Images) -> Images:
    """Return the images that the captions describe, each once."""
    captions = len(file.lines)
    # Rows may repeat an image if there is one caption per row, but not with a .tsv: that format has
    # one caption per image. Pictures are never repeated: no published files have them.
    may_repeat = captions == len(images) and file.path.suffix != ".tsv"
    if may_repeat and isinstance(images, RegionFeatures):
        return undo_repeats(images)
    if captions % len(images):
        raise DataError(
            f"{file.path}: found {captions} captions for the {len(images)} images of "
            f"{images.name}, expected a multiple of the number of images"
        )
    return images


def _equal_blocks(file: CaptionFile, images: Images) -> Int[np.ndarray, " pairs"]:
    """Image row of each caption, if all images have the same number of captions."""
    return np.arange(len(file.lines)) // (len(file.lines) // len(images))


def _read_pairs(file: CaptionFile, images: Images, path: Path) -> Int[np.ndarray, " pairs"]:
    """Read the image row of each caption from `{split}_pairs.npy`.

    Raises:
      DataError: the file does not have one integer per caption, a row is out of range or smaller
        than the previous one, or an image has no caption; lists every such entry or image.
    """
    rows, captions = open_array(path), len(file.lines)
    is_index = rows.dtype.kind in "iu" and rows.shape == (captions,)
    expected = f"integers [{captions}], the image row of each caption of {file.path}"
    check_form(path, rows, is_index, expected)
    expected = f"0 to {len(images) - 1}, a row of {images.name}"
    check_entries(path, rows, (rows >= 0) & (rows < len(images)), expected)
    rows = rows.astype(np.int64)
    falls = np.flatnonzero(np.diff(rows) < 0) + 1
    if len(falls):
        expected = "expected ascending rows"
        raise DataError(
            *(
                f"{path}: entry {at}: found {rows[at]} after {rows[at - 1]}, {expected}"
                for at in falls
            )
        )
    absent = np.flatnonzero(np.bincount(rows, minlength=len(images)) == 0)
    if len(absent):
        expected = f"expected every row of {images.name}"
        raise DataError(*(f"{path}: found no row {row}, {expected}" for row in absent))
    return rows
