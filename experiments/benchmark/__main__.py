"""Methods on the same data, protocol, head, seeds and number of networks, as one table.

python -m experiments.benchmark --suite=scenes --out=runs/benchmark
python -m experiments.benchmark --suite=flickr8k --path=DIR --out=runs/benchmark
python -m experiments.benchmark --suite=flickr8k --path=DIR --out=runs/benchmark \
    --row=l2rm,"l2rm crossfit" --rate=0.8 --seed=0,1
python -m experiments.benchmark --suite=flickr8k --path=DIR --out=runs/benchmark --report
python -m experiments.benchmark --suite=mine.py --plugins=my_method --out=runs/benchmark

A suite is a file in `experiments/benchmark/suites/`, or the path of a file like them; --plugins
imports the methods and heads of its rows. --config and --set FIELD=VALUE replace the suite's config
and settings, but not the fields that distinguish its rows; --set seed=7 or mismatch.rate=0.5 gives
all runs one seed or rate. Unfinished runs are trained in parallel, one per core, in OUT/SUITE/RUN,
a work directory like any other. The command continues after any stop, skips finished runs, and
names the runs that failed. At any time --report writes, from the finished runs,
OUT/SUITE/results.csv with a row per run, report.md, and report.html with figures. --csv also keeps
the rows in another file, with rows of runs that were deleted; a run with a row there is not trained
again, so a large suite can be trained in parts, in several places. --dry_run lists the runs.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.benchmark import page, records, tables
from experiments.benchmark.pool import run_cells
from experiments.benchmark.suite import Cell, Suite, cells, find_suite, suite_names
from experiments.papers.runs import epoch_records
from experiments.script import add_settings, new_parser, plugin_names, start, values_of, write_rows
from l2rm_jax import console
from l2rm_jax.errors import ConfigError
from l2rm_jax.jobs.files import replace_file

FILTERS = ("row", "head", "protocol", "rate", "seed")


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--suite", required=True, help=f"PATH.py or {', '.join(suite_names())}")
    parser.add_argument("--path", type=Path, help="directory of the data")
    parser.add_argument("--pretrained", type=Path, help="directory of a pretrained encoder")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark"))
    parser.add_argument("--config", help="NAME, FILE.py or FILE.py:VARIANT, not the suite's own")
    add_settings(parser, "set")
    for name, kind in zip(FILTERS, (str, str, str, float, int), strict=True):
        parser.add_argument(f"--{name}", type=values_of(kind), help="only these, with commas")
    parser.add_argument("--cores", type=values_of(int), help="cores to use, all by default")
    parser.add_argument("--dry_run", action="store_true", help="list the runs, train nothing")
    parser.add_argument("--report", action="store_true", help="write the report, train nothing")
    parser.add_argument("--csv", type=Path, help="keep the rows of finished runs in this file")
    flags = parser.parse_args()
    if flags.path and not flags.path.is_dir():
        raise ConfigError(f"--path={flags.path}: no such directory, expected the data")
    suite, everything, chosen = asked(flags)
    name = Path(flags.suite).stem
    out = flags.out / name
    kept = records.read_records(flags.csv) if flags.csv else []
    chosen = [cell for cell in chosen if cell.name not in {row["run"] for row in kept}]
    if flags.dry_run:
        console.say("\n".join(cell.name for cell in chosen))
        return
    failures = [] if flags.report else run_cells(chosen, out, flags.cores or _cores())
    rows = records.finished(suite, everything, out)
    names = [cell.name for cell in everything]
    if flags.csv:
        rows = records.merged(rows, kept, names)
        flags.csv.parent.mkdir(parents=True, exist_ok=True)
        write_rows(flags.csv, rows, records.COLUMNS)
    if rows:
        out.mkdir(parents=True, exist_ok=True)
        write_rows(out / "results.csv", rows, records.COLUMNS)
        write_pages(name, rows, everything, out)
    else:
        console.say("no run is finished yet")
    if failures:
        sys.exit("\n".join(f"failed: {each.workdir}: {each.reason}" for each in failures))


def asked(flags: argparse.Namespace) -> tuple[Suite, list[Cell], list[Cell]]:
    """Return the suite with the config and settings of the flags, all its runs, and the chosen.

    Raises:
      ConfigError: there is no such suite, run or field.
    """
    suite = find_suite(flags.suite)
    plugins = (*plugin_names(suite.settings), *plugin_names(flags.set))
    settings = {**suite.settings, **flags.set, "plugins": tuple(dict.fromkeys(plugins))}
    suite = suite._replace(config=flags.config or suite.config, settings=settings)
    everything = cells(suite, flags.path, flags.pretrained)
    only = {name: getattr(flags, name) for name in FILTERS}
    return suite, everything, select(everything, only)


def select(everything: Sequence[Cell], only: dict[str, Sequence | None]) -> list[Cell]:
    """Return the runs that have one of the given values of each property; None allows all.

    Raises:
      ConfigError: no run has one of the values.
    """
    chosen = list(everything)
    for name, values in only.items():
        if values is None:
            continue
        known = {properties(cell)[name] for cell in everything}
        if unknown := [value for value in values if value not in known]:
            raise ConfigError(
                f"--{name}={unknown[0]}: the suite has none, expected of "
                f"{', '.join(map(str, sorted(known)))}"
            )
        chosen = [cell for cell in chosen if properties(cell)[name] in values]
    return chosen


def properties(cell: Cell) -> dict[str, str | float | int]:
    """Return the properties by which runs are chosen."""
    config = cell.config
    values = cell.row, config.model.head, config.mismatch.protocol, config.mismatch.rate
    return dict(zip(FILTERS, (*values, config.seed), strict=True))


def write_pages(
    name: str, rows: Sequence[records.Record], everything: Sequence[Cell], out: Path
) -> None:
    """Write `report.md` and `report.html`, and say where."""
    curves: dict[tables.Key, list[list[float]]] = {}
    for row in rows:
        validations = epoch_records(out / row["run"])
        if validations:
            key = row["row"], row["head"], row["protocol"], row["rate_asked"]
            curves.setdefault(key, []).append([record["rsum"] for record in validations])
    texts = {
        "report.md": page.markdown(name, rows, len(everything)),
        "report.html": page.html(name, rows, len(everything), curves),
    }
    for file, text in texts.items():
        replace_file(out / file, text.encode())
        console.say(str(out / file))


def _cores() -> list[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


if __name__ == "__main__":
    start(main, prepare=False)
