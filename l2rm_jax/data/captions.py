"""Captions of a split: the file that holds them, and what each of its lines must be."""

from pathlib import Path
from typing import NamedTuple

from l2rm_jax.errors import DataError, Problems

MAX_CHARACTERS = 10_000  # some two thousand words


class CaptionFile(NamedTuple):
    """A caption file as it lies: one line is one caption."""

    path: Path
    lines: list[bytes]


def caption_files(path: Path, split: str) -> list[Path]:
    """The files that there are of the captions of a split, in words."""
    candidates = [path / f"{split}_caps{suffix}" for suffix in (".txt", ".tsv")]
    return [file for file in candidates if file.is_file()]


def open_captions(path: Path, split: str) -> CaptionFile:
    """The caption file of a split in the directory `path`, its lines not looked at yet.

    Raises:
      DataError: there is no such file, there are two, or it is empty.
    """
    present = caption_files(path, split)
    if len(present) != 1:
        found = "found both" if present else "found neither"
        raise DataError(f"{path / split}_caps.txt, {split}_caps.tsv: {found}, expected one of them")
    source = present[0]
    lines = source.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":  # the end of the last line, not a line
        lines.pop()
    if not lines:
        raise DataError(f"{source}: the file is empty, expected one caption a line")
    return CaptionFile(source, lines)


def read_captions(path: str | Path, split: str) -> list[str]:
    """The captions of a split in the directory `path`.

    Raises:
      DataError: as `open_captions` and `parse_captions`.
    """
    return parse_captions(open_captions(Path(path), split))


def parse_captions(file: CaptionFile) -> list[str]:
    """The captions: the lines of a `.txt`, the second column of a `.tsv`, spaces around cut off.

    Raises:
      DataError: text that is not UTF-8, an empty caption or an endless one, a wrong number of
        columns; one problem for each such line.
    """
    problems = Problems()
    columns = 2 if file.path.suffix == ".tsv" else 1
    captions = [
        problems.attempt(_caption, f"{file.path}:{n}", line, columns)
        for n, line in enumerate(file.lines, 1)
    ]
    problems.refuse()
    return captions


def check_length(where: str, caption: str) -> None:
    """Raises `DataError` for a caption that is none: time and memory grow with its length."""
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
            f"{where}: byte {error.start + 1} of the line (0x{line[error.start]:02x}) is not UTF-8"
        ) from error
    if columns == 2:
        fields = text.split("\t")
        if len(fields) != 2:
            raise DataError(f"{where}: found {len(fields)} columns, expected id, tab, caption")
        text = fields[1]
    if not text.strip():
        raise DataError(f"{where}: the caption is empty, expected one caption a line")
    check_length(where, text)
    return text.strip()
