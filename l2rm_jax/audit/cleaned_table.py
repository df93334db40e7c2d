"""Copy the user's table without its suspicious rows: same columns, same format.

Rows are copied byte by byte. This needs data that `l2rm import` read from one file, because the
imported directory stores the row that each caption comes from.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int
from ml_collections import ConfigDict

from l2rm_jax.data.files import named_if_full
from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.data.record import read_record
from l2rm_jax.importing.csv_rows import find_dialect
from l2rm_jax.importing.splits import rows_of_splits
from l2rm_jax.importing.text_io import open_text
from l2rm_jax.importing.writing import hash_file


def write_kept_table(
    data: ConfigDict | None, kept: Bool[np.ndarray, " pairs"], directory: Path
) -> str:
    """Write `kept.csv` (or .tsv, .jsonl, .parquet), if the source of the data is known.

    A row stays if one of its captions in the training split is kept, or if it belongs to another
    split. Rows that the import rejected are left out.

    Args:
      data: the `data` part of the config; None for arrays.
      kept: whether each pair of the training split is kept.
      directory: directory of the new table.

    Returns:
      A sentence about the table, or the reason why there is none.
    """
    reason = "no kept table: the data were not imported from a table"
    record = read_record(data.path) if data is not None and data.path else None
    if record is None:
        return reason
    source, rows = record["source"], rows_of_splits(Path(data.path))
    if not rows or source["kind"] not in _COPIERS or source.get("bytes") is None:
        return f"{reason} of one file (.csv, .tsv, .txt, .jsonl, .parquet)"
    path = Path(source["path"])
    if len(rows["train"]) != len(kept):
        return "no kept table: only part of the training pairs was judged"
    if not path.is_file() or [hash_file(path)] != source["hashes"]:
        return f"no kept table: {path} is missing, or has changed since the import"
    train = rows.pop("train")
    stays = np.unique(np.concatenate([train[kept], *rows.values()]))
    out = directory / f"kept{path.suffix}"
    columns = [*record["columns"]["image"], *record["columns"]["captions"]]
    with named_if_full(out):
        _COPIERS[source["kind"]](path, out, stays, columns)
    mixed = np.count_nonzero(np.isin(train[~kept], stays))
    note = f"{out.name}: {len(stays):,} rows of {path}, unchanged"
    if mixed:
        note += f"; {mixed:,} suspicious captions remain because their row has a kept caption"
    return note


def _copy_lines(
    source: Path, out: Path, stays: Int[np.ndarray, " rows"], _columns: Sequence[str]
) -> None:
    """Copy lines of a file without a header; blank lines are not rows."""
    text = open_text(source)
    lines = (line for line in text.lines() if line.strip())
    _copy(enumerate(map(text.encode, lines), 1), out, stays, text.mark)


def _copy_text(
    source: Path, out: Path, stays: Int[np.ndarray, " rows"], columns: Sequence[str], kind: str
) -> None:
    """Copy the header, if there is one, and rows, each of which may span several lines."""
    dialect = find_dialect(source, kind, columns)
    header = int(dialect.has_header)
    rows = (dialect.text.encode(text) for text, _ in dialect.records())
    stays = np.concatenate([np.zeros(header, int), stays])
    _copy(enumerate(rows, 1 - header), out, stays, dialect.text.mark)


def _copy(
    rows: Iterator[tuple[int, bytes]], out: Path, stays: Int[np.ndarray, " rows"], mark: bytes
) -> None:
    """Copy the mark of the encoding and the numbered rows that stay."""
    wanted = iter(stays.tolist())
    next_row = next(wanted, None)
    with out.open("wb") as copy:
        copy.write(mark)
        for number, content in rows:
            if number == next_row:
                copy.write(content)
                next_row = next(wanted, None)


def _copy_parquet(
    source: Path, out: Path, stays: Int[np.ndarray, " rows"], _columns: Sequence[str]
) -> None:
    """Copy the rows of each row group."""
    import pyarrow.parquet as pq

    start, table = 0, open_parquet(source)
    with out.open("wb") as file, pq.ParquetWriter(file, table.schema_arrow) as writer:
        for number in range(table.num_row_groups):
            group = table.read_row_group(number)
            own = stays[(stays > start) & (stays <= start + len(group))] - start - 1
            if len(own):
                writer.write_table(group.take(own))
            start += len(group)


_COPIERS = {
    "jsonl": _copy_lines,
    "parquet": _copy_parquet,
    "csv": partial(_copy_text, kind="csv"),
    "tsv": partial(_copy_text, kind="tsv"),
}
