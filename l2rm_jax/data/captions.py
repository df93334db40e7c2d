"""Read the caption file of a split and check each of its lines."""

from pathlib import Path
from typing import NamedTuple

from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.jobs.regular_files import TEXT, has_file, read_regular

MAX_CHARACTERS = 10_000  # about 2000 words


class CaptionFile(NamedTuple):
    """Raw lines of a caption file, one caption per line."""

    path: Path
    lines: list[bytes]


def caption_files(path: Path, split: str) -> list[Path]:
    """List the caption files (`.txt`, `.tsv`) of a split that exist in the directory `path`."""
    candidates = [split_file(path, split, content) for content in ("texts", "named_texts")]
    return [file for file in candidates if has_file(file)]


def open_captions(path: Path, split: str, or_vectors: bool = False) -> CaptionFile:
    """Open the caption file of a split in the directory `path`, without checking its lines.

    Args:
      path: directory of the file.
      split: name of the split.
      or_vectors: whether the message about a missing file also names `{split}_caps.npy` as an
        alternative.

    Raises:
      DataError: there is no caption file, there are two, or the file is empty.
    """
    present = caption_files(path, split)
    if len(present) > 1:
        raise DataError(
            f"{path / split}_caps.txt cannot be combined with {split}_caps.tsv; remove one of them"
        )
    if not present:
        vectors = f", or {split}_caps.npy (their vectors)" if or_vectors else ""
        raise DataError(
            f"{path}: no captions of {split}, expected {split}_caps.txt or {split}_caps.tsv (text)"
            f"{vectors}"
        )
    [source] = present
    lines = read_regular(source, TEXT).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":  # what follows the newline of the last caption
        lines.pop()
    if not lines:
        raise DataError(f"{source}: found an empty file, expected one caption per line")
    return CaptionFile(source, lines)


def read_captions(path: str | Path, split: str) -> list[str]:
    """Read the captions of a split in the directory `path`.

    Raises:
      DataError: as `open_captions` and `parse_captions`.
    """
    return parse_captions(open_captions(Path(path), split))


def parse_captions(file: CaptionFile) -> list[str]:
    """Decode the captions: each line of a `.txt`, the second column of a `.tsv`, stripped.

    Raises:
      DataError: lines that are not UTF-8, empty captions, captions of more than `MAX_CHARACTERS`
        characters, a wrong number of columns; lists one problem for each such line.
    """
    problems = Problems()
    columns = 2 if file.path.suffix == ".tsv" else 1
    captions = [
        problems.attempt(_caption, f"{file.path}:{n}", line, columns)
        for n, line in enumerate(file.lines, 1)
    ]
    problems.raise_all()
    return captions


def check_length(where: str, caption: str) -> None:
    """Raise `DataError` if a caption is too long, because memory and time grow with its length."""
    if len(caption) > MAX_CHARACTERS:
        raise DataError(
            f"{where}: found {len(caption)} characters, expected a caption of at most "
            f"{MAX_CHARACTERS}"
        )


def _caption(where: str, line: bytes, columns: int) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: found the byte 0x{line[error.start]:02x} at position {error.start + 1} of "
            "the line, expected text in UTF-8"
        ) from error
    if columns == 2:
        fields = text.split("\t")
        if len(fields) != 2:
            raise DataError(f"{where}: found {len(fields)} columns, expected id, tab, caption")
        text = fields[1]
    if not text.strip():
        raise DataError(f"{where}: found an empty caption, expected one caption per line")
    check_length(where, text)
    return text.strip()
