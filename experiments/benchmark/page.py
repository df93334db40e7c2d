"""The report as Markdown, and as one HTML file that needs no other."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from experiments.benchmark.figures import Curves, curve_figure, rate_figure, to_svg
from experiments.benchmark.overview import lead_table, overview_table
from experiments.benchmark.records import Record, complete, read_records
from experiments.benchmark.tables import Cell, Table, all_tables, markdown_table
from l2rm_jax.errors import DataError

_STYLE = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_COMPLETE = ", complete"
_LEGEND = (
    "Mean and standard deviation over seeds, their number in brackets, at the head of a column if "
    "all its rows have as many. The best of a column is bold; rows within its standard error are "
    "in italics (one seed has none). Validation chooses the epoch. Differences are paired by seed, "
    "with Student's 95% interval. Compare rows of an equal number of networks."
)


def markdown(name: str, records: Sequence[Record], total: int) -> str:
    """The report as Markdown, without figures.

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


def html(name: str, records: Sequence[Record], total: int, curves: Curves) -> str:
    """The report as an HTML file with figures.

    Args:
      name: of the suite.
      records: rows of the finished runs.
      total: how many runs the suite has.
      curves: validation rSum of the runs that are there.
    """
    body = [f"<h1>Benchmark {escape(name)}</h1>"]
    body += [f"<p>{escape(text)}</p>" for text in (_sentence(records, total), _LEGEND)]
    names = list(dict.fromkeys(record["row"] for record in records))
    for protocol in dict.fromkeys(record["protocol"] for record in records):
        title = f"Test rSum by rate, protocol {protocol}"
        body.append(_figure(title, to_svg(rate_figure(records, protocol, names))))
    for protocol, rate in sorted({key[2:] for key in curves}):
        if figure := curve_figure(curves, protocol, rate, names):
            title = f"Validation rSum by epoch, protocol {protocol}, rate {rate}"
            body.append(_figure(title, to_svg(figure)))
    body += [_table(table) for table in _tables(records)]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width">\n'
        f"<title>Benchmark {escape(name)}</title>\n<style>\n{_STYLE.read_text()}</style>\n"
        "</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


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


def _figure(title: str, svg: str) -> str:
    return f"<h2>{escape(title)}</h2>\n<figure>{svg}</figure>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    return (
        f'<h2>{escape(table.title)}</h2>\n<div class="wide"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _cell(cell: Cell) -> str:
    kind = f' class="{cell.kind}"' if cell.kind else ""
    return f"<td{kind}>{escape(cell.text)}</td>"
