"""Vectors in columns of Parquet files, copied once to memory-mapped files."""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from l2rm_jax.console import progress_bar
from l2rm_jax.data.npy_files import RowFile
from l2rm_jax.errors import ConfigError, DataError, Problems, first_line
from l2rm_jax.jobs.files import new_file
from l2rm_jax.jobs.locks import locked_file
from l2rm_jax.jobs.regular_files import check_regular

_WORDS = {"img_emb": ("image", "img"), "text_emb": ("text", "txt", "caption")}  # in their names
_ROWS = 4096  # rows read at once
_LOCK = "lock"  # file among the copies
_BUFFER = 1 << 20  # bytes of a column that are read at once


def open_parquet(file: Path) -> Any:
    """Open a file as `pyarrow.parquet.ParquetFile`; only its end is read.

    Raises:
      DataError: it is not a Parquet file.
      ConfigError: the package pyarrow is missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            f"{file}: reading this file requires pyarrow", hint="pip install pyarrow"
        ) from None
    check_regular(file)
    try:
        # A relative path with a colon would be taken as a URI.
        return parquet.ParquetFile(file.absolute(), buffer_size=_BUFFER, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{file}: cannot be read ({first_line(error, 200)}), expected a Parquet file"
        ) from error


def natural_order(file: Path) -> list[tuple[int, str]]:
    """Sort key of a file that puts `part-10` after `part-9`."""
    parts = re.findall(r"\d+|\D+", file.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def vector_column(file: Path, side: str) -> str | None:
    """Name of the column with the vectors of a side; None without one.

    It holds lists of floats, and its name contains `image` or `img`, or for captions `text`, `txt`
    or `caption`: `image_embedding`, `img_emb`, `clip_text_features`.

    Args:
      file: the Parquet file.
      side: `img_emb` or `text_emb`.

    Raises:
      DataError: there are several.
    """
    words = _WORDS[side]
    found = [
        field.name
        for field in open_parquet(file).schema_arrow
        if _is_vector(field.type) and any(word in field.name.lower() for word in words)
    ]
    if len(found) > 1:
        raise DataError(
            f"{file}: found the columns {', '.join(found)}, expected one with "
            f"{' or '.join(words)} in its name"
        )
    return found[0] if found else None


def copy_vectors(
    files: Sequence[Path], sides: Sequence[str], directory: Path
) -> dict[str, list[tuple[str, Path]]]:
    """Copy the vectors of Parquet files to `.npy` files, unless they are copied already.

    A file is read in blocks, so memory does not grow with it. A copy is identified by the path,
    size and time of its file, so a changed file is copied again. If several processes need a copy,
    one makes it and the others wait.

    Args:
      files: the Parquet files.
      sides: `img_emb` and `text_emb`.
      directory: directory of the copies.

    Returns:
      For each side and file, a name for messages and the copy.

    Raises:
      DataError: a file is damaged or empty, lacks a column, or has a row without a vector of the
        length of the first; lists every problem.
    """
    problems = Problems()
    copied: dict[str, list[tuple[str, Path]]] = {side: [] for side in sides}
    directory.mkdir(parents=True, exist_ok=True)
    with (
        locked_file(directory / _LOCK, "copies vectors beside", timeout=-1),
        progress_bar(len(files), "reading vectors", unit="files") as bar,
    ):
        for file in files:
            columns = problems.attempt(_columns, file, sides)
            for side, column in (columns or {}).items():
                copied[side].append((f"{file}: {column}", directory / _copy_name(file, column)))
            if columns is not None:
                wanted = {columns[side]: copied[side][-1][1] for side in sides}
                problems.attempt(_copy, file, wanted)
            bar.update(1)
    problems.raise_all()
    return copied


def _is_vector(kind: Any) -> bool:
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and types.is_floating(kind.value_type)


def _columns(file: Path, sides: Sequence[str]) -> dict[str, str]:
    """The column of each side."""
    found = {}
    for side in sides:
        column = vector_column(file, side)
        if column is None:
            fields = open_parquet(file).schema_arrow
            names = ", ".join(f"{field.name} ({field.type})" for field in fields)
            raise DataError(
                f"{file}: found no column of lists of floats with {' or '.join(_WORDS[side])} in "
                f"its name, among {names}"
            )
        found[side] = column
    return found


def _copy_name(file: Path, column: str) -> str:
    state = file.stat()
    identity = f"{file.absolute()}\n{state.st_size}\n{state.st_mtime_ns}\n{column}"
    return f"{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}.npy"


def _copy(file: Path, copies: dict[str, Path]) -> None:
    """Copy columns, unless their copies exist."""
    copies = {column: copy for column, copy in copies.items() if not copy.exists()}
    if not copies:
        return
    table = open_parquet(file)
    rows, start, problems = table.metadata.num_rows, 0, []
    if not rows:
        raise DataError(f"{file}: found no rows, expected at least one")
    with contextlib.ExitStack() as stack:
        paths = {name: stack.enter_context(new_file(copy)) for name, copy in copies.items()}
        sizes: dict[str, int] = {}
        outs: dict[str, RowFile] = {}
        for batch in _batches(file, table, list(copies)):
            for name, path in paths.items():
                block = _block(f"{file}: {name}", batch[name], start, sizes, problems)
                if block is None:
                    continue
                if name not in outs:
                    out = RowFile(path, block.dtype, (rows, block.shape[1]))
                    outs[name] = stack.enter_context(out)
                outs[name].write(np.arange(start, start + len(batch)), block)
            start += len(batch)
        if problems:
            raise DataError(*problems)


def _batches(file: Path, table: Any, columns: list[str]) -> Iterator[Any]:
    """Rows of a file, in blocks."""
    import pyarrow

    try:
        yield from table.iter_batches(_ROWS, columns=columns)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: cannot be read ({first_line(error, 200)})") from error


def _block(
    name: str, column: Any, start: int, sizes: dict[str, int], problems: list[str]
) -> Float[np.ndarray, "rows d"] | None:
    """Read the vectors of some rows; if rows are invalid, report each of them and return None.

    Args:
      name: file and column.
      column: the lists of numbers.
      start: number of the first row.
      sizes: length of the first vector of each column, by name.
      problems: receives the reports.
    """
    from pyarrow import compute

    lengths = compute.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False)
    size = sizes.setdefault(name, next((int(n) for n in lengths if n > 0), 0))
    wrong = np.flatnonzero((lengths != size) | (lengths == 0))
    for row in wrong:
        found = "null" if lengths[row] < 0 else f"{lengths[row]} numbers"
        expected = f"{size}, as in the first row" if size else "some"
        problems.append(f"{name}: row {start + row}: found {found}, expected {expected}")
    if len(wrong):
        return None
    values = column.flatten()
    if values.null_count:
        is_null = values.is_null().to_numpy(zero_copy_only=False).reshape(-1, size)
        rows = np.flatnonzero(is_null.any(axis=1))
        problems += [f"{name}: row {start + row}: found a null, expected numbers" for row in rows]
        return None
    return values.to_numpy(zero_copy_only=False).reshape(-1, size)
