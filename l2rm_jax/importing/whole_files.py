"""Prove that a file was read to its end: a download that broke off must not look complete.

Text proves it by the end of its last line, JSON by its closing bracket and Parquet by its footer,
which their readers check. Archives and Arrow's streams have marks, which are checked here.
"""

import tarfile
from pathlib import Path

from l2rm_jax.errors import DataError

_END = 2 * tarfile.BLOCKSIZE  # bytes of zeros after the last member
_BLOCK = 1 << 20  # bytes read at once
_STREAM_ENDS = (b"\xff\xff\xff\xff\0\0\0\0", b"ARROW1")  # of Arrow's streams, and of its files


def read_members(file: Path) -> tuple[list[tarfile.TarInfo], int]:
    """Read the headers of an archive, to its end.

    Returns:
      Its members, and the place where the last one ends.

    Raises:
      DataError: it is no archive, or it is damaged: `tarfile` itself takes a header that it cannot
        read for the end, and so loses the members after it.
    """
    members, problem, end = [], "", 0
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                members.append(member)
                end = archive.offset
    except tarfile.TarError as error:
        problem = f"found {error}"
    if problem := problem or _problem_after(file, end):
        last = f"member {len(members):,}, {members[-1].name}" if members else "its start"
        raise DataError(
            f"{file}: archive damaged after {last}: {problem} at byte {end:,}, expected two blocks "
            "of zeros and the end of the file; download or write it again"
        )
    return members, end


def _problem_after(file: Path, end: int) -> str:
    """Describe data after the last member that are not zeros to the end of the file; "" if none."""
    size = file.stat().st_size
    if size < end + _END:
        return f"found {max(0, size - end):,} bytes"
    with file.open("rb") as source:
        source.seek(end)
        first = source.read(_END)
        if any(first):
            return "found no header of a member"
        while block := source.read(_BLOCK):
            if block.count(0) != len(block):
                return "found more data behind zeros"
    return ""


def check_arrow(file: Path) -> None:
    """Check that a file of Arrow ends with the mark of its format.

    Raises:
      DataError: it does not; a stream that was cut between two blocks of rows reads like a whole.
    """
    with file.open("rb") as source:
        source.seek(max(0, file.stat().st_size - len(_STREAM_ENDS[0])))
        ending = source.read()
    if not ending.endswith(_STREAM_ENDS):
        raise DataError(
            f"{file}: found no mark at its end, expected that of Arrow's format: the file is cut; "
            "write or copy it again"
        )


def is_cut(line: str, fields: list[str], width: int) -> bool:
    """Whether a row of a table with separators is the last one and was cut.

    It has no end of line, and lacks fields or the end of a quote. A row that is cut within its last
    field looks like one of a file whose last line has no end.

    Args:
      line: the row as it is written.
      fields: its fields.
      width: number of columns.
    """
    if line.endswith(("\n", "\r")):
        return False
    has_open_quote = any(each.lstrip().startswith('"') and each.count('"') % 2 for each in fields)
    return len(fields) < width or has_open_quote
