"""Read the text files of a split: its captions, and the user's names of images and captions."""

from pathlib import Path

from l2rm_jax.data.split_files import split_file
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.jobs.regular_files import TEXT, has_file, read_regular

MAX_CHARACTERS = 10_000  # about 2000 words


def caption_files(path: Path, split: str) -> list[Path]:
    """List the caption files (`.txt`, `.tsv`) of a split that exist in the directory `path`."""
    candidates = [split_file(path, split, content) for content in ("texts", "named_texts")]
    return [file for file in candidates if has_file(file)]


def open_captions(path: Path, split: str, or_vectors: bool = False) -> tuple[Path, list[bytes]]:
    """Return the caption file of a split in the directory `path`, and its lines, not checked yet.

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
    lines = _content(source).split(b"\n")
    if lines[-1] == b"":  # what follows the newline of the last caption
        lines.pop()
    if not lines:
        raise DataError(f"{source}: found an empty file, expected one caption per line")
    return source, lines


def read_captions(path: str | Path, split: str) -> list[str]:
    """Read the captions of a split in the directory `path`.

    Raises:
      DataError: as `open_captions` and `parse_captions`.
    """
    return parse_captions(*open_captions(Path(path), split))


def parse_captions(path: Path, lines: list[bytes]) -> list[str]:
    """Decode the captions: each line of a `.txt`, the second column of a `.tsv`, stripped.

    Raises:
      DataError: lines that are not UTF-8, empty captions, captions of more than `MAX_CHARACTERS`
        characters, a wrong number of columns; lists one problem for each such line.
    """
    problems = Problems()
    columns = 2 if path.suffix == ".tsv" else 1
    captions = [
        problems.attempt(_caption, f"{path}:{n}", line, columns) for n, line in enumerate(lines, 1)
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


def read_image_ids(path: str | Path, split: str, images: int) -> list[str] | None:
    """Read `{split}_ids.txt`, one line per image; None if there is no such file.

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
    """Read the first column of `{split}_caps.tsv`, which `parse_captions` has checked, or None."""
    file = split_file(path, split, "named_texts")
    return [line.partition("\t")[0] for line in _lines(file)] if has_file(file) else None


def _lines(file: Path) -> list[str]:
    """The lines of a text file; only a newline ends one, as in a file of captions."""
    try:
        text = _content(file).decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}: byte {error.start + 1} is not UTF-8, expected text in UTF-8"
        ) from error
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _content(file: Path) -> bytes:
    """Read a text file without a byte order mark."""
    return read_regular(file, TEXT).removeprefix(b"\xef\xbb\xbf")
