"""The user's own table without the rows that an audit doubts: same columns, same format.

Rows are copied as they are. This needs data that `l2rm import` read from one file, as its directory
says which row each caption comes from.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Bool, Int
from ml_collections import ConfigDict

from l2rm_jax.data.files import open_array
from l2rm_jax.data.importing.fit import read_record
from l2rm_jax.data.importing.splits import SPLITS
from l2rm_jax.errors import DataError

_SEPARATORS = {"csv": ",", "tsv": "\t"}


def write_kept_table(
    data: ConfigDict | None, kept: Bool[np.ndarray, " pairs"], directory: Path
) -> str:
    """Write `kept.csv` (or .tsv, .jsonl, .parquet), if the source of the data is known.

    A row stays if one of its captions in the training split is kept, or if it is of another split.
    Rows that the import rejected do not.

    Args:
      data: the `data` part of the config; None for arrays.
      kept: which pairs of the training split are kept.
      directory: where the table is written.

    Returns:
      A sentence about the table, or why there is none.

    Raises:
      DataError: the source cannot be read.
    """
    reason = "no kept table: the data were not imported from a table"
    record = read_record(data.path) if data is not None and data.path else None
    if record is None:
        return reason
    source, rows = record["source"], _rows(Path(data.path))
    if not rows or source["kind"] not in _COPIERS or source.get("bytes") is None:
        return f"{reason} of one file (.csv, .tsv, .jsonl, .parquet)"
    path = Path(source["path"])
    if len(rows["train"]) != len(kept):
        return "no kept table: only a part of the training pairs was judged"
    if not path.is_file() or path.stat().st_size != source["bytes"]:
        return f"no kept table: {path} is not there any more, or has changed since the import"
    train = rows.pop("train")
    stays = np.unique(np.concatenate([train[kept], *rows.values()]))
    out = directory / f"kept{path.suffix}"
    _COPIERS[source["kind"]](path, out, stays)
    mixed = np.count_nonzero(np.isin(train[~kept], stays))
    note = f"{out.name}: {len(stays):,} rows of {path}, as they are"
    if mixed:
        note += f"; they hold {mixed:,} doubted captions, as another one of the row is kept"
    return note


def _rows(directory: Path) -> dict[str, Int[np.ndarray, " captions"]]:
    """The row of each caption, from 1, by split; empty without the training split."""
    files = {split: directory / f"{split}_rows.npy" for split in SPLITS}
    found = {split: np.array(open_array(file)) for split, file in files.items() if file.is_file()}
    return found if "train" in found else {}


def _copy_lines(source: Path, out: Path, stays: Int[np.ndarray, " rows"]) -> None:
    """Copy lines, which are rows without a header."""
    with source.open("rb") as file, out.open("wb") as copy:
        _copy(enumerate(file, 1), copy, stays)


def _copy_csv(source: Path, out: Path, stays: Int[np.ndarray, " rows"], separator: str) -> None:
    """Copy the header and rows, each of which may span several lines."""
    with source.open(encoding="latin-1", newline="") as file, out.open("wb") as copy:
        # Every byte is one character of Latin-1, and the bytes of UTF-8 beyond ASCII are never
        # commas, quotes or ends of lines.
        rows = enumerate(_csv_rows(file, separator), 0)
        _copy(((number, text.encode("latin-1")) for number, text in rows), copy, stays, header=1)


def _csv_rows(file: Any, separator: str) -> Iterator[str]:
    """The text of each row as it is, line ends included."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in file:
            taken.append(line)
            yield line

    limit = csv.field_size_limit(sys.maxsize)
    try:
        for _ in csv.reader(lines(), delimiter=separator):
            yield "".join(taken)
            taken.clear()
    except csv.Error as error:
        raise DataError(f"{file.name}: not a table ({error})") from error
    finally:
        csv.field_size_limit(limit)


def _copy(
    rows: Iterator[tuple[int, bytes]], copy: BinaryIO, stays: np.ndarray, header: int = 0
) -> None:
    """Copy the numbered rows that stay; with `header`, also number 0."""
    wanted = iter([*([0] * header), *stays.tolist()])
    next_row = next(wanted, None)
    for number, content in rows:
        if number == next_row:
            copy.write(content)
            next_row = next(wanted, None)


def _copy_parquet(source: Path, out: Path, stays: Int[np.ndarray, " rows"]) -> None:
    """Copy the rows of each row group."""
    import pyarrow.parquet as pq

    start, table = 0, pq.ParquetFile(source)
    with pq.ParquetWriter(out, table.schema_arrow) as writer:
        for number in range(table.num_row_groups):
            group = table.read_row_group(number)
            own = stays[(stays > start) & (stays <= start + len(group))] - start - 1
            if len(own):
                writer.write_table(group.take(own))
            start += len(group)


_COPIERS = {
    "jsonl": _copy_lines,
    "parquet": _copy_parquet,
    **{
        kind: lambda source, out, stays, separator=separator: _copy_csv(
            source, out, stays, separator
        )
        for kind, separator in _SEPARATORS.items()
    },
}
