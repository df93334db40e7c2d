"""Rows of finished runs: what `results.csv` holds, one a run."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmark.pool import COST_FILE
from experiments.benchmark.suite import Cell, Suite
from experiments.papers.runs import RECALLS, epoch_records, read_log
from experiments.papers.sweep import result_row
from experiments.script import read_rows
from l2rm_jax.errors import DataError
from l2rm_jax.run.log import EPOCH_KINDS
from l2rm_jax.run.results import RESULTS_FILE

SPLIT_QUALITY = "split_auroc", "split_precision"
COLUMNS = (
    "run", "data", "row", "method", "head", "split", "networks", "protocol", "rate_asked",
    "true_rate", "seed", "dev_rsum", *(f"test_{name}" for name in RECALLS), "best_epoch",
    *SPLIT_QUALITY, "seconds", "peak_mb", "device", "jax", "l2rm_jax", "commit",
    "machine",
)  # fmt: skip
Record = dict[str, str]


def finished(suite: Suite, cells: Iterable[Cell], out: Path) -> list[Record]:
    """Return the row of each finished run, in the order of the cells."""
    ended = (cell for cell in cells if (out / cell.name / RESULTS_FILE).exists())
    return [make_record(suite, cell, out / cell.name) for cell in ended]


def make_record(suite: Suite, cell: Cell, workdir: Path) -> Record:
    """Return the row of a finished run; unknown values stay empty."""
    results = json.loads((workdir / RESULTS_FILE).read_text())
    cost_file = workdir / COST_FILE
    cost = json.loads(cost_file.read_text()) if cost_file.exists() else {}
    found = {**results, **result_row(results, epoch_records(workdir)), **cost}
    known = {
        "run": cell.name,
        "row": cell.row,
        "split": suite.rows[cell.row].split,
        "networks": results.get("networks", 1),
        **{f"test_{name}": found[name] for name in RECALLS},
    }
    for record in read_log(workdir, EPOCH_KINDS):  # the last split of the pairs against the truth
        known |= {name: record[name] for name in SPLIT_QUALITY if name in record}
    if "peak_bytes" in cost:
        known["peak_mb"] = cost["peak_bytes"] / 1e6
    return {name: _text(name, {**found, **known}.get(name, "")) for name in COLUMNS}


def _text(name: str, value: Any) -> str:
    if value in (None, ""):
        return ""
    if name in ("seconds", "peak_mb"):
        return f"{value:.0f}"
    if name.startswith(("dev_", "test_")):
        return f"{value:.2f}"
    return f"{value:.4f}" if name.startswith(("split_", "true_")) else str(value)


def read_records(path: Path) -> list[Record]:
    """Return the rows of a file; none if there is no file.

    Raises:
      DataError: it has other columns.
    """
    rows = read_rows(path)
    if rows and tuple(rows[0]) != COLUMNS:
        raise DataError(f"{path}: columns {[*rows[0]]}, expected {', '.join(COLUMNS)}")
    return rows


def complete(records: Sequence[Record], seeds: int = 3) -> list[Record]:
    """Return the rows of tables without holes: with `seeds` at least at each rate of a protocol."""
    counts = Counter(
        (each["row"], each["head"], each["protocol"], each["rate_asked"]) for each in records
    )
    rates: dict[tuple[str, str], set[str]] = {}
    for _, head, protocol, rate in counts:
        rates.setdefault((head, protocol), set()).add(rate)
    return [
        each
        for each in records
        if all(
            counts[each["row"], each["head"], each["protocol"], rate] >= seeds
            for rate in rates[each["head"], each["protocol"]]
        )
    ]


def merged(new: Sequence[Record], old: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """Return new rows, and old ones of runs that have no new one; runs not in `names` are left out.

    Args:
      new: rows of the runs that are there.
      old: rows that were kept.
      names: the runs of the suite, in order.
    """
    rows = {row["run"]: row for row in (*old, *new)}
    return [rows[name] for name in names if name in rows]
