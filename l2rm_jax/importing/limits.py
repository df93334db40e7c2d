"""Limits of a source: beyond them, reading would take hours or all memory, and is refused."""

from l2rm_jax.errors import DataError

COLUMNS = 1_000  # of a table, or kinds of files and fields of a sample
ROWS = 10_000_000  # of an import in one piece


def check_columns(name: object, count: int) -> None:
    """Check the number of columns of a table.

    Raises:
      DataError: there are too many.
    """
    if count > COLUMNS:
        raise DataError(
            f"{name}: found {count:,} columns or more, expected at most {COLUMNS:,}; keep those of "
            "images and captions"
        )


def check_rows(name: object, count: int) -> None:
    """Check the number of rows of a source.

    Raises:
      DataError: there are too many.
    """
    if count > ROWS:
        raise DataError(
            f"{name}: found {count:,} rows or more, expected at most {ROWS:,} in one import; write "
            "them to several files, and import these with --per_file"
        )
