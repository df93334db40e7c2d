"""Limits of a source: beyond them, reading would take hours or all memory, and is refused."""

from l2rm_jax.errors import DataError

COLUMNS = 1_000  # of a table, or kinds of files and fields of a sample
ROWS = 10_000_000  # of an import in one piece
CAPTIONS = 10_000  # of a cell


def check_size(name: object, columns: int, rows: int = 0) -> None:
    """Check the size of a table.

    Raises:
      DataError: it is too large.
    """
    if columns > COLUMNS:
        raise DataError(f"{name}: found {columns:,} columns or more, expected at most {COLUMNS:,}")
    if rows > ROWS:
        raise DataError(
            f"{name}: found {rows:,} rows, expected at most {ROWS:,} in one import; write them to "
            "several files, and import these with --per_file"
        )
