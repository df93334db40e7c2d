"""Names of the images and captions of a split in the user's own data, if the files have them."""

from pathlib import Path
from typing import Any

from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.data.pixels import Pixels
from l2rm_jax.data.stored import read_images
from l2rm_jax.errors import DataError

_BOM = b"\xef\xbb\xbf"


def read_ids(data_config: Any, pairs: PairDataset) -> tuple[list[str] | None, list[str] | None]:
    """Read the user's name of each image and each caption; None if the data have no names.

    Args:
      data_config: the `data` part of a config.
      pairs: the pairs that it describes, or the pairs of its first images.

    Raises:
      DataError: as `read_image_ids`.
    """
    if not data_config.path:
        return None, None
    stored = read_images(data_config.path, pairs.split, isinstance(pairs.images, Pixels))
    images = len(stored) // pairs.images.stride
    image_ids = read_image_ids(data_config.path, pairs.split, images)
    captions = read_caption_ids(data_config.path, pairs.split)
    return image_ids and image_ids[: len(pairs.images)], captions and captions[: len(pairs)]


def read_image_ids(path: str | Path, split: str, images: int) -> list[str] | None:
    """Read `{split}_ids.txt`, one line per image; None if there is no such file.

    Args:
      path: directory of the data.
      split: name of the split.
      images: number of images that the split has.

    Raises:
      DataError: the file is not UTF-8, or has another number of lines.
    """
    file = Path(path) / f"{split}_ids.txt"
    if not file.is_file():
        return None
    ids = _lines(file)
    if len(ids) != images:
        raise DataError(
            f"{file}: found {len(ids)} lines, expected {images}, one for each image of {split}"
        )
    return ids


def read_caption_ids(path: str | Path, split: str) -> list[str] | None:
    """Read the first column of `{split}_caps.tsv`; None if there is no such file.

    `captions.parse_captions` has checked the lines.
    """
    file = Path(path) / f"{split}_caps.tsv"
    return [line.partition("\t")[0] for line in _lines(file)] if file.is_file() else None


def _lines(file: Path) -> list[str]:
    """The lines of a text file; only a newline ends one, as in a file of captions."""
    try:
        text = file.read_bytes().removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}: byte {error.start + 1} is not UTF-8, expected text in UTF-8"
        ) from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
