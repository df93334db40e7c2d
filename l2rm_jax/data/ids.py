"""Names of the images and captions of a split in the user's own data, if the files have them."""

from pathlib import Path

from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError
from l2rm_jax.jobs.regular_files import TEXT, has_file, read_regular

_BOM = b"\xef\xbb\xbf"


def read_image_ids(path: str | Path, split: str, images: int) -> list[str] | None:
    """Read `{split}_ids.txt`, one line per image; None if there is no such file.

    Args:
      path: directory of the data.
      split: name of the split.
      images: number of images that the split has.

    Raises:
      DataError: the file is not UTF-8, or has another number of lines.
    """
    file = split_file(path, split, "ids")
    if not has_file(file):
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
    file = split_file(path, split, "named_texts")
    return [line.partition("\t")[0] for line in _lines(file)] if has_file(file) else None


def _lines(file: Path) -> list[str]:
    """The lines of a text file; only a newline ends one, as in a file of captions."""
    try:
        text = read_regular(file, TEXT).removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}: byte {error.start + 1} is not UTF-8, expected text in UTF-8"
        ) from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
