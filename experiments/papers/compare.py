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
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.benchmark.tables import Cell, Table, markdown_table
from experiments.papers.groups import Group, group_runs, notes
from experiments.papers.runs import RECALLS, Run, find_runs, read_run
from experiments.script import new_parser, start, write_rows
from l2rm_jax.errors import ConfigError, L2RMError


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
        print("\n".join([table(groups), *notes(groups)]))
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


def table(groups: Sequence[Group]) -> str:
    """Return a Markdown table with a row for each group: fields, seeds, means, seconds."""
    has_mismatches = any(group.mismatches > 1 for group in groups)
    columns = ["", *groups[0].fields, "seeds", *(["mismatch seeds"] if has_mismatches else [])]
    columns += ["validation rSum", "test rSum", "i2t R@1", "t2i R@1", "seconds"]
    rows = []
    for number, group in enumerate(groups, 1):
        cells = [str(number), *group.fields.values(), group.seeds]
        cells += [str(group.mismatches)] if has_mismatches else []
        test = spread(group.numbers["rsum"]) or group.progress
        recalls = [spread(group.numbers[name]) for name in ("i2t_r1", "t2i_r1")]
        seconds = spread(group.numbers["seconds"][:1], ".0f")
        rows.append([*cells, spread(group.numbers["dev_rsum"]), test, *recalls, seconds])
    return markdown_table(Table("", columns, [[Cell(cell) for cell in row] for row in rows]))


def spread(numbers: Sequence[float], form: str = ".1f") -> str:
    """Return `mean ±deviation`; the mean alone where no deviation is known, or nothing."""
    return " ±".join(f"{number:{form}}" for number in numbers)


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
