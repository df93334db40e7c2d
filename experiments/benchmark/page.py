"""The report as Markdown."""

from collections.abc import Sequence
from pathlib import Path

from experiments.benchmark.overview import lead_table, overview_table
from experiments.benchmark.records import Record, complete, read_records
from experiments.benchmark.tables import Table, all_tables, markdown_table
from l2rm_jax.errors import DataError

_COMPLETE = ", complete"
_LEGEND = (
    "Mean and standard deviation over seeds, their number in brackets, at the head of a column if "
    "all its rows have as many. The best of a column is bold; rows within its standard error are "
    "in italics (one seed has none). Validation chooses the epoch. Differences are paired by seed, "
    "with Student's 95% interval. Compare rows of an equal number of networks."
)


def markdown(name: str, records: Sequence[Record], total: int) -> str:
    """Return the report as Markdown.

    Args:
      name: of the suite.
      records: rows of the finished runs.
      total: how many runs the suite has.
    """
    parts = [f"# Benchmark {name}", _sentence(records, total), _LEGEND]
    parts += [f"## {table.title}\n\n{markdown_table(table)}" for table in _tables(records)]
    return "\n\n".join(parts) + "\n"


def find_table(path: Path, asked: str) -> Table:
    """Return a table of a kept file of rows, by its title.

    With `, complete` after the title, rows leave it that were run with fewer than three seeds
    where others were run.

    Raises:
      DataError: there is no such file, or none of its tables has the title.
    """
    records, title = read_records(path), asked.removesuffix(_COMPLETE)
    if title != asked:
        records = complete(records)
    tables = {table.title: table for table in _tables(records)} if records else {}
    if title not in tables:
        raise DataError(f"{path}: no table {title!r}, expected of {', '.join(tables) or 'no rows'}")
    return tables[title]


def _tables(records: Sequence[Record]) -> list[Table]:
    """All tables; first the overviews whose runs are there."""
    protocols = dict.fromkeys(record["protocol"] for record in records)
    found = [table for protocol in protocols if (table := overview_table(records, protocol))]
    leads = [lead_table(records)] if found else []
    return [*found, *leads, *all_tables(records)]


def _sentence(records: Sequence[Record], total: int) -> str:
    found = {name: _several(records, name) for name in ("commit", "machine", "jax", "device")}
    return (
        f"{len(records)} of {total} runs are finished. Commit {found['commit']}; jax "
        f"{found['jax']} on {found['device']}; {found['machine']}."
    )


def _several(records: Sequence[Record], column: str) -> str:
    return ", ".join(sorted({record[column] for record in records} - {""})) or "not known"
