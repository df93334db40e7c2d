"""Which columns of a source hold the images, the captions and the splits."""

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from l2rm_jax.data.importing.sources import Part, Source
from l2rm_jax.errors import ConfigError

# Usual names of columns, the most specific first.
_IMAGE_NAMES = (
    *("filepath", "file_path", "image_path", "image_file", "file_name", "filename", "image", "img"),
    *("path", "file", "picture", "photo", "jpg", "jpeg", "png", "webp", "image_id", "id"),
)
_CAPTION_NAMES = (
    *("title", "caption", "captions", "text", "txt", "sentence", "sentences", "description"),
    *("raw", "alt_text", "alt", "json.caption", "json.captions", "json.text", "comment"),
)
_SPLIT_NAMES = ("split",)
_ARCHIVED_PICTURES = ("jpg", "jpeg", "png", "webp")  # a sample of an archive has one of these


class Columns(NamedTuple):
    """The columns of a source that an import reads.

    Attributes:
      image: columns with the image; of several, the first that is not empty counts.
      captions: columns with captions, one or several.
      split: column with the name of the split; None if there is none.
    """

    image: tuple[str, ...]
    captions: tuple[str, ...]
    split: str | None


def find_columns(source: Source, image: str, captions: Sequence[str], by_shares: bool) -> Columns:
    """Find the columns to read: those that the flags name, else those with usual names.

    Args:
      source: the rows.
      image: value of `--image_column`; "" guesses.
      captions: values of `--caption_column`.
      by_shares: ignore a column of splits, as `--split` was given.

    Raises:
      ConfigError: a column does not exist, or none has a usual name.
    """
    names = list(dict.fromkeys(name for part in source.parts for name in part.table.column_names))
    for flag, name in [("image", image), *(("caption", name) for name in captions)]:
        if name and name not in names:
            raise _column_error(source, f"--{flag}_column: no column {name!r}", names)
    by_name = {name.lower(): name for name in reversed(names)}
    usual = [by_name[name] for name in _IMAGE_NAMES if name in by_name and by_name[name] != image]
    image_columns = (image,) if image else tuple(usual[:1])
    if not image and source.kind == "webdataset":
        image_columns = tuple(name for name in usual if name in _ARCHIVED_PICTURES)
    if not image_columns:
        raise _column_error(source, "--image_column: none looks like the image's", names)
    usual = [by_name[name] for name in _CAPTION_NAMES if name in by_name]
    caption_columns = tuple(captions) or tuple(n for n in usual if n not in image_columns)[:1]
    if not caption_columns:
        raise _column_error(source, "--caption_column: none looks like the captions'", names)
    split = next((by_name[name] for name in _SPLIT_NAMES if name in by_name), None)
    return Columns(image_columns, caption_columns, None if by_shares else split)


def _column_error(source: Source, problem: str, names: Sequence[str]) -> ConfigError:
    return ConfigError(f"{problem}, expected one of those of {source.path}: {', '.join(names)}")


def text_column(part: Part, name: str) -> pa.Array:
    """A column as text; a column that the part lacks is empty.

    Raises:
      ConfigError: the column holds neither text nor numbers.
    """
    if name not in part.table.column_names:
        return pa.nulls(len(part.table), pa.large_string())
    column = part.table[name]
    try:
        # Large first: the chunks together may hold more than 2 GiB.
        return column.cast(pa.large_string()).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise ConfigError(
            f"column {name}: found {column.type}, expected text, or lists of text for captions"
        ) from None
