"""Compare runs, finished or not, in one table and one figure of their validation curves.

python -m experiments.papers.compare runs/scenes
python -m experiments.papers.compare runs/a runs/b* --csv=table.csv --figure=curves.png
python -m experiments.papers.compare runs/rcl --figure=curves.png --measure=i2t_r1

DIR is a run directory, or any directory with run directories below it. Runs that differ only in
`seed` and `mismatch.seed` make one row: mean ± standard deviation over the finished ones. Every
other config field in which the runs differ is a column, except those that change no result. Rows
are sorted by the best validation rSum. A run that is not finished shows how far it is, and its best
validation so far. If a directory cannot be read, the last lines name it and the exit status is 1.
"""

import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.papers.groups import Group, group_runs, notes
from experiments.papers.runs import RECALLS, Run, find_runs, read_run
from experiments.script import new_parser, start, write_rows
from l2rm_jax.errors import ConfigError, L2RMError

WIDTH = 100  # characters of a line
VALUE_WIDTH = 20  # characters of a config value, unless it takes more to tell two values apart


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="runs, or above them")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write the rows as CSV")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the curves: .png or .svg")
    parser.add_argument(
        "--measure", choices=RECALLS, default="rsum", help="what the curves show, rsum by default"
    )
    options = parser.parse_args(arguments)
    if options.figure and options.figure.suffix not in (".png", ".svg"):
        raise ConfigError(f"--figure={options.figure}: expected a name that ends in .png or .svg")
    runs, unread = read_runs(options.runs)
    if runs:
        groups = group_runs(runs)
        print("\n".join([*table(groups), *map(wrapped, notes(groups))]))
        if options.csv:
            write_csv(groups, options.csv)
        if options.figure:
            from experiments.papers.plot_validation import (
                draw,  # needs matplotlib, which is optional
            )

            draw(groups, options.figure, options.measure)
    if unread:
        sys.exit("\n".join(f"not read: {reason}" for reason in unread))


def read_runs(directories: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read all runs in and below the directories, each run once.

    Returns:
      The runs, and the reason for each directory that cannot be read.
    """
    workdirs, runs, unread = {}, [], []
    for directory in directories:
        try:
            workdirs |= {path.resolve(): path for path in find_runs(directory)}
        except L2RMError as error:
            unread += error.args
    for workdir in workdirs.values():
        try:
            runs.append(read_run(workdir))
        except L2RMError as error:
            unread += error.args
    return runs, unread


class Column(NamedTuple):
    """A column: two lines of heading, and a cell for each row."""

    heading: tuple[str, str]
    cells: list[str]

    @property
    def width(self) -> int:
        return max(map(len, [*self.heading, *self.cells]))


def table(groups: Sequence[Group]) -> list[str]:
    """Return the lines of the table, of at most `WIDTH` characters.

    Fields that do not fit beside the results, the widest first, follow below by number of row.
    """
    number = Column(("", ""), [str(row) for row in range(1, 1 + len(groups))])
    fields = {
        key: field_column(key, [group.fields[key] for group in groups]) for key in groups[0].fields
    }
    results = result_columns(groups)

    def width() -> int:
        return sum(2 + column.width for column in (number, *fields.values(), *results)) - 2

    while width() > WIDTH and fields:
        del fields[max(fields, key=lambda key: fields[key].width)]
    below = [key for key in groups[0].fields if key not in fields]
    columns = [(column, str.ljust) for column in (number, *fields.values())]
    columns += [(column, str.rjust) for column in results]
    lines = [
        "  ".join(
            align([*column.heading, *column.cells][line], column.width) for column, align in columns
        ).rstrip()
        for line in range(2 + len(groups))
    ]
    for row, group in enumerate(groups, 1) if below else ():
        lines.append(wrapped(f"{row}: " + ", ".join(f"{key} {group.fields[key]}" for key in below)))
    return lines


def field_column(key: str, values: Sequence[str]) -> Column:
    """Return the column of a config field: its section stands above its name."""
    section, dot, name = key.rpartition(".")
    return Column((section + dot, name), shortened(values))


def shortened(values: Sequence[str]) -> list[str]:
    """Cut the middle out of long values, so far that different ones stay different."""
    for room in range(VALUE_WIDTH, max(map(len, values))):
        begin = room // 3
        short = [
            text if len(text) <= room else f"{text[:begin]}…{text[begin + 1 - room :]}"
            for text in values
        ]
        if len(set(short)) == len(set(values)):
            return short
    return list(values)


def result_columns(groups: Sequence[Group]) -> list[Column]:
    """Return the columns of seeds, validation, test and seconds."""
    columns = [Column(("", "seeds"), [group.seeds for group in groups])]
    if any(group.mismatches > 1 for group in groups):
        counts = [str(group.mismatches) for group in groups]
        columns.append(Column(("mismatch", "seeds"), counts))
    shown = {
        ("validation", "rSum"): [spread(group.numbers["dev_rsum"]) for group in groups],
        ("test", "rSum"): [spread(group.numbers["rsum"]) or group.progress for group in groups],
        ("i2t", "R@1"): [spread(group.numbers["i2t_r1"]) for group in groups],
        ("t2i", "R@1"): [spread(group.numbers["t2i_r1"]) for group in groups],
        ("", "seconds"): [spread(group.numbers["seconds"][:1], ".0f") for group in groups],
    }
    return columns + [Column(heading, cells) for heading, cells in shown.items()]


def spread(numbers: Sequence[float], form: str = ".1f") -> str:
    """Return `mean ±deviation`; the mean alone where no deviation is known, or nothing."""
    return " ±".join(f"{number:{form}}" for number in numbers)


def wrapped(text: str) -> str:
    """Break a text into lines of at most `WIDTH` characters."""
    # A path stays in one piece, so that it can be copied.
    whole = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", **whole)


def write_csv(groups: Sequence[Group], path: Path) -> None:
    """Write a row for each group: fields, run directories, seeds, means and deviations.

    Raises:
      ConfigError: the file cannot be written.
    """
    rows = []
    for group in groups:
        row = {**group.fields, "runs": " ".join(str(run.workdir) for run in group.runs)}
        row |= {"seeds": group.seeds, "mismatch_seeds": group.mismatches}
        row["progress"] = group.progress
        for name, numbers in group.numbers.items():
            row |= dict(zip((name, f"{name}_deviation"), [*numbers, "", ""][:2], strict=True))
        rows.append(row)
    try:
        write_rows(path, rows)
    except OSError as error:
        raise ConfigError(f"--csv={path}: cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    start(main, prepare=False)
