"""Pair pictures with texts that lie in another folder or have other words in their names."""

import logging
from collections.abc import Sequence
from pathlib import Path

from l2rm_jax.errors import DataError
from l2rm_jax.importing.column_names import PICTURE_ENDINGS
from l2rm_jax.importing.samples import TEXT_ENDINGS, Member, find_pictures

_log = logging.getLogger(__name__)

_FEW = 3  # texts; fewer may be tables
_LOOKED_AT = 5  # texts that show whether they are tables of pictures
_HEAD = 4096  # bytes of each


def pair_texts(files: Sequence[Path], base: Path) -> dict[Path, str]:
    """Name each text like its picture: `captions/1_de.txt` becomes `images/1.txt`.

    A text belongs to the picture whose name is the same but for a beginning and an end that all
    pictures share, or all texts.

    Args:
      files: the files of a directory and those below it.
      base: the directory.

    Returns:
      New names, relative to `base`; empty unless most names agree.

    Raises:
      DataError: there are many texts, which are no tables, and their names do not agree.
    """
    pictures = find_pictures(files)
    texts = [file for file in files if file.suffix[1:].lower() in TEXT_ENDINGS]
    if not pictures:
        return {}
    picture_of = _cores(pictures, base)
    for ending in TEXT_ENDINGS:
        text_of = _cores([file for file in texts if file.suffix[1:].lower() == ending], base)
        both = [core for core in text_of if core in picture_of]
        if len(both) > 1 and 2 * len(both) > min(len(text_of), len(picture_of)):
            if left_out := len(texts) - len(both):
                _log.warning("%s: %d texts have no picture, and are not read", base, left_out)
            stems = {core: picture_of[core].relative_to(base).with_suffix("") for core in both}
            return {text_of[core]: f"{stems[core]}.{ending}" for core in both}
    if len(texts) >= _FEW and 2 * len(texts) >= len(pictures) and not _are_tables(texts):
        raise DataError(
            f"{base}: found {len(pictures):,} pictures and {len(texts):,} texts whose names do not "
            f"agree ({pictures[0].name} and {texts[0].name}), expected 1.jpg and 1.txt, or a table"
        )
    return {}


def _are_tables(texts: Sequence[Path]) -> bool:
    """Whether the first texts name pictures."""
    endings = [f".{ending}".encode() for ending in PICTURE_ENDINGS]
    heads = [Member("", file, 0, _HEAD).read().lower() for file in texts[:_LOOKED_AT]]
    return any(ending in head for ending in endings for head in heads)


def _cores(files: Sequence[Path], base: Path) -> dict[str, Path]:
    """Files by their names without what all share; empty if two have the same name."""
    names = [str(file.relative_to(base).with_suffix("")) for file in files]
    start = _shared_length(names)
    rests = [name[start:][::-1] for name in names]
    end = _shared_length(rests)
    files_by_core = {rest[end:]: file for rest, file in zip(rests, files, strict=True)}
    return files_by_core if len(files_by_core) == len(files) else {}


def _shared_length(names: Sequence[str]) -> int:
    """Length of the beginning that all names share and that ends within no word or number."""
    first, last = min(names, default=""), max(names, default="")
    length = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    while length and any(_is_one_word(name[length - 1 : length + 1]) for name in names):
        length -= 1
    return length


def _is_one_word(pair: str) -> bool:
    return len(pair) == 2 and (pair.isdigit() or pair.isalpha())
