"""The tables of a report: recalls over seeds, paired differences, splits, and costs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from experiments.benchmark.records import Record
from experiments.benchmark.statistics import (
    Difference,
    Mean,
    mean_of,
    paired_difference,
    within_error,
)
from experiments.papers.runs import RECALLS
from l2rm_jax.config import NEEDED_HEADS

LINEAR_REFERENCES = ("cca weighted", "recipe linear", "recipe frozen")  # with a head of their own
REFERENCES = ("triplet", "infonce", "infonce kept frozen", *LINEAR_REFERENCES)
MEASURES = {"dev_rsum": "Validation rSum", "test_rsum": "Test rSum"}
LINEAR = NEEDED_HEADS["cca"]
_MARKS = {"best": "**{}**", "close": "*{}*", "": "{}"}
# A row, the head, the protocol and the rate of a cell.
Key = tuple[str, str, str, str]


class Cell(NamedTuple):
    """A cell of a table; `kind` is "best", "close" or ""."""

    text: str
    kind: str = ""


class Table(NamedTuple):
    """A table with a title, the names of its columns and its rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def markdown_table(table: Table) -> str:
    """A table as Markdown."""
    rows = [table.columns, ["---", *["--:"] * (len(table.columns) - 1)]]
    rows += [[_MARKS[cell.kind].format(cell.text) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def by_cell(records: Sequence[Record], column: str) -> dict[Key, dict[int, float]]:
    """Return the values of a column by cell and seed; empty ones are left out."""
    found: dict[Key, dict[int, float]] = {}
    for record in records:
        if record[column]:
            key = record["row"], record["head"], record["protocol"], record["rate_asked"]
            found.setdefault(key, {})[int(record["seed"])] = float(record[column])
    return found


def rates_of(keys: Iterable[Key], protocol: str) -> list[str]:
    """The rates of a protocol, from low to high."""
    return sorted({key[3] for key in keys if key[2] == protocol}, key=float)


def recall_tables(records: Sequence[Record]) -> list[Table]:
    """A table of each measure for each protocol and head, and for all protocols of a head.

    Linear rows stand in all of them.
    """
    tables, groups = [], _groups(records)
    shown = [([protocol], head) for protocol, head in groups]
    by_head: dict[str, list[str]] = {}
    for protocol, head in groups:
        by_head.setdefault(head, []).append(protocol)
    shown += [(each, head) for head, each in by_head.items() if len(each) > 1]
    for measure, title in MEASURES.items():
        values = by_cell(records, measure)
        means = {key: mean_of([*each.values()]) for key, each in values.items()}
        for protocols, head in shown:
            noun = "protocol" if len(protocols) == 1 else "protocols"
            name = f"{title}, {noun} {' and '.join(protocols)}, head {head}"
            tables.append(_rate_table(name, records, protocols, head, means, _mean_column))
    return tables


def head_tables(records: Sequence[Record]) -> list[Table]:
    """A column for each head, where a protocol has rows with several heads."""
    values, tables = by_cell(records, "test_rsum"), []
    for protocol in dict.fromkeys(key[2] for key in values):
        keys = [key for key in values if key[2] == protocol]
        heads = list(dict.fromkeys(head for _, head, _, _ in keys))
        lines = dict.fromkeys((row, rate) for row, _, _, rate in keys)
        if len(keys) == len(lines):
            continue  # each row has one head
        rows = [
            (
                *map(Cell, (row, short_rate(rate))),
                *(_mean(values.get((row, head, protocol, rate), {}), ".1f") for head in heads),
            )
            for row, rate in lines
        ]
        title = f"Test rSum by head, protocol {protocol}"
        tables.append(Table(title, ("row", "rate", *heads), rows))
    return tables


def directions_table(records: Sequence[Record]) -> Table:
    """Test recalls in both directions of search, means over seeds."""
    columns = [by_cell(records, f"test_{name}") for name in RECALLS]
    rows = [
        (
            *map(Cell, (*key[:3], short_rate(key[3]))),
            *(_mean(column[key], ".1f") for column in columns),
            Cell(str(len(seeds))),
        )
        for key, seeds in columns[0].items()
    ]
    return Table("Test recalls", ("row", "head", "protocol", "rate", *RECALLS, "seeds"), rows)


def difference_tables(records: Sequence[Record]) -> list[Table]:
    """Return the lead of each row over the references, with the 95% interval."""
    tables = []
    for (measure, title), reference in product(MEASURES.items(), REFERENCES):
        found = _differences(by_cell(records, measure), reference)
        for protocol, head in _groups(records):
            name = f"{title}, ahead of {reference}, protocol {protocol}, head {head}"
            table = _rate_table(name, records, [protocol], head, found, _difference_column)
            tables += [table] if table.rows else []
    return tables


def _differences(
    values: Mapping[Key, Mapping[int, float]], reference: str
) -> dict[Key, Difference]:
    """Each row less the reference: with the same head, or with the linear one."""
    found = {}
    for key, own in values.items():
        row, head, *rest = key
        of_reference = LINEAR if reference in LINEAR_REFERENCES else head
        other = values.get((reference, of_reference, *rest), {})
        if row != reference and (difference := paired_difference(own, other)):
            found[key] = difference
    return found


def split_table(records: Sequence[Record]) -> Table:
    """Return the quality of the last split of each run's pairs."""
    auroc, precision = (by_cell(records, f"split_{name}") for name in ("auroc", "precision"))
    rows = [
        (*map(Cell, key), _mean(each, ".3f"), _mean(precision.get(key, {}), ".3f"))
        for key, each in auroc.items()
    ]
    return Table(
        "Quality of the split",
        ("row", "head", "protocol", "rate", "AUROC", "precision of the matched"),
        rows,
    )


def cost_table(records: Sequence[Record]) -> Table:
    """Seconds and memory of a run, over all rates, protocols and seeds."""
    seconds: dict[tuple[str, ...], list[float]] = {}
    memory: dict[tuple[str, ...], list[float]] = {}
    for record in records:
        key = record["row"], record["head"], record["networks"]
        seconds.setdefault(key, []).append(float(record["seconds"]))
        memory.setdefault(key, []).extend([float(record["peak_mb"])] if record["peak_mb"] else [])
    rows = [
        (
            *map(Cell, key),
            Cell(f"{np.median(each):,.0f}"),
            Cell(f"{max(memory[key]):,.0f}" if memory[key] else ""),
            Cell(str(len(each))),
        )
        for key, each in seconds.items()
    ]
    columns = ("row", "head", "networks", "seconds (median)", "memory, MB (most)", "runs")
    return Table("Cost of a run", columns, rows)


def all_tables(records: Sequence[Record]) -> list[Table]:
    """All tables of a report."""
    return [
        *head_tables(records),
        *recall_tables(records),
        directions_table(records),
        *difference_tables(records),
        split_table(records),
        cost_table(records),
    ]


def _groups(records: Sequence[Record]) -> list[tuple[str, str]]:
    """Protocols and heads; the linear head alone only where a protocol has no other."""
    found = dict.fromkeys((record["protocol"], record["head"]) for record in records)
    deep = {protocol for protocol, head in found if head != LINEAR}
    return [group for group in found if group[1] != LINEAR or group[0] not in deep]


def _rate_table(
    title: str,
    records: Sequence[Record],
    protocols: Sequence[str],
    head: str,
    values: Mapping[Key, Mean] | Mapping[Key, Difference],
    column: Callable,
) -> Table:
    """A row of the suite a line, a rate a column.

    Args:
      title: of the table.
      records: they give the order of the rows.
      protocols: of the table; where there are several, columns are named by them too.
      head: of the table; rows that only the linear head has stand in it too.
      values: of the cells.
      column: makes the name and the cells of a column of a name and values.
    """
    own = {record["row"] for record in records if record["head"] == head}
    lines = dict.fromkeys(
        (record["row"], record["head"], record["networks"])
        for record in sorted(records, key=lambda record: record["head"] != LINEAR)
        if record["head"] == (head if record["row"] in own else LINEAR)
        and record["protocol"] in protocols
    )
    columns = []
    for protocol in protocols:
        for rate in rates_of(values, protocol):
            name = short_rate(rate) if len(protocols) == 1 else f"{protocol} {short_rate(rate)}"
            found = [values.get((row, of, protocol, rate)) for row, of, _ in lines]
            columns.append(column(name, found))
    rows = [
        (Cell(row), Cell(networks), *cells)
        for (row, _, networks), cells in zip(
            lines, zip(*(cells for _, cells in columns), strict=True), strict=False
        )
        if any(cell.text for cell in cells)
    ]
    return Table(title, ("row", "networks", *(name for name, _ in columns)), rows)


def _mean_column(name: str, means: Sequence[Mean | None]) -> tuple[str, list[Cell]]:
    """The best is marked; the number of seeds stands in the name if all cells have the same."""
    seeds = {mean.seeds for mean in means if mean}
    cells = [
        Cell(_mean_text(mean, len(seeds) > 1) if mean else "", kind)
        for mean, kind in zip(means, within_error(means), strict=True)
    ]
    return (f"{name} ({seeds.pop()})" if len(seeds) == 1 else name), cells


def _mean_text(value: Mean, has_seeds: bool) -> str:
    spread = f" ±{value.deviation:.1f}" if value.seeds > 1 else ""
    return f"{value.mean:.1f}{spread}" + (f" ({value.seeds})" if has_seeds else "")


def _difference_column(
    name: str, differences: Sequence[Difference | None]
) -> tuple[str, list[Cell]]:
    return name, [difference_cell(each) for each in differences]


def difference_cell(value: Difference | None) -> Cell:
    if value is None:
        return Cell("")
    interval = f" [{value.low:+.1f}, {value.high:+.1f}]" if value.pairs > 1 else ""
    return Cell(f"{value.mean:+.1f}{interval} ({value.pairs})")


def short_rate(text: str) -> str:
    """A rate in three digits."""
    return f"{float(text):.3g}"


def _mean(values: Mapping[int, float], form: str) -> Cell:
    return Cell(format(np.mean([*values.values()]), form) if values else "")
