"""Divide the user's table into kept and dropped rows: same columns, same format.

Rows are copied byte by byte, except those whose caption a reviewer replaced. This needs data that
`l2rm import` read from one file, because the imported directory stores the row of each caption.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from ml_collections import ConfigDict

from l2rm_jax.audit.copy_rows import COPIERS, Edits
from l2rm_jax.data.content_hashes import is_unchanged
from l2rm_jax.data.record import read_record
from l2rm_jax.importing.splits import rows_of_splits
from l2rm_jax.jobs.full_disk import named_if_full


class Sorted(NamedTuple):
    """The training pairs, sorted by what becomes of them.

    Attributes:
      kept: [pairs] whether each pair is kept.
      texts: [pairs] captions; None if nothing is repaired.
      taken: row of the caption that a reviewer took instead, by the row of the wrong pair.
      certified: rows of the certified pairs.
    """

    kept: Bool[np.ndarray, " pairs"]
    texts: list[str] | None
    taken: Mapping[int, int]
    certified: Int[np.ndarray, " certified"]


class _Table(NamedTuple):
    """The user's table.

    Attributes:
      path: the file.
      kind: its kind, a key of `COPIERS`.
      columns: names of the columns with images, then of those with captions.
      train: [pairs] row of each training pair, from 1.
      others: rows of the pairs of the other splits, which are not judged.
    """

    path: Path
    kind: str
    columns: tuple[list[str], list[str]]
    train: Int[np.ndarray, " pairs"]
    others: Int[np.ndarray, " rows"]

    def write(self, out: Path, rows: Int[np.ndarray, " rows"], edits: Edits) -> int:
        """Copy rows to a new file; return the number of captions that were replaced."""
        with named_if_full(out):
            return COPIERS[self.kind](self.path, out, rows, self.columns, edits)


def write_tables(data: ConfigDict | None, pairs: Sorted, directory: Path) -> list[str]:
    """Write `kept.csv`, `dropped.csv`, `repaired.csv`, `certified.csv` (or .tsv, .jsonl, .parquet).

    A row is kept if one of its captions in the training split is kept, or if it belongs to another
    split; the other judged rows are dropped. `repaired.csv`, written where a reviewer took
    proposals, has the kept rows and those with a caption taken, which stands for the wrong one.
    `certified.csv`, written with a certificate, has the rows with a certified caption. Rows that
    the import rejected are in none of them.

    Args:
      data: the `data` part of the config; None for arrays.
      pairs: the pairs of the training split.
      directory: directory of the new tables.

    Returns:
      A sentence about each table, or the reason why there is none.
    """
    table = _find_table(data, len(pairs.kept))
    if isinstance(table, str):
        return [table]
    train, kept = table.train, pairs.kept
    stays = np.unique(np.concatenate([train[kept], table.others]))
    goes = np.setdiff1d(train, stays)
    ending = table.path.suffix
    table.write(directory / f"kept{ending}", stays, {})
    table.write(directory / f"dropped{ending}", goes, {})
    mixed = np.count_nonzero(np.isin(train[~kept], stays))
    note = f"kept{ending}: {len(stays):,} rows of {table.path}, unchanged"
    if mixed:
        note += f"; {mixed:,} suspicious captions remain because their row has a kept caption"
    notes = [note, f"dropped{ending}: the {len(goes):,} other judged rows, unchanged"]
    if pairs.taken and pairs.texts is not None:
        edits: Edits = {}
        for wrong, right in pairs.taken.items():
            edits.setdefault(int(train[wrong]), {})[pairs.texts[wrong]] = pairs.texts[right]
        rows = np.union1d(stays, [*edits])
        done = table.write(directory / f"repaired{ending}", rows, edits)
        notes.append(f"repaired{ending}: the kept rows, and {done:,} captions taken from proposals")
        if left := len(pairs.taken) - done:
            notes[-1] += f", without {left:,} that the table does not have as text"
    if len(pairs.certified):
        rows = np.unique(train[pairs.certified])
        table.write(directory / f"certified{ending}", rows, {})
        notes.append(f"certified{ending}: {len(rows):,} rows of {table.path}, unchanged")
        if more := np.count_nonzero(np.isin(train, rows)) - len(pairs.certified):
            notes[-1] += f"; {more:,} of their captions are not certified"
    return notes


def _find_table(data: ConfigDict | None, pairs: int) -> _Table | str:
    """Return the table that the pairs were imported from, or the reason why there is none."""
    reason = "no kept table: the data were not imported from a table"
    record = read_record(data.path) if data is not None and data.path else None
    if record is None:
        return reason
    source, rows = record["source"], rows_of_splits(Path(data.path))
    if not rows or source["kind"] not in COPIERS or source.get("bytes") is None:
        return f"{reason} of one file (.csv, .tsv, .txt, .jsonl, .parquet)"
    path = Path(source["path"])
    if len(rows["train"]) != pairs:
        return "no kept table: only part of the training pairs was judged"
    if not is_unchanged(path, source["hashes"]):
        return f"no kept table: {path} is missing, cannot be read, or has changed since the import"
    columns = record["columns"]["image"], record["columns"]["captions"]
    train = rows.pop("train")
    others = np.unique(np.concatenate([np.zeros(0, int), *rows.values()]))
    return _Table(path, source["kind"], columns, train, others)
