"""Style of all figures, and rows of `results.csv` averaged over seeds."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from l2rm_jax.errors import DataError
from l2rm_jax.methods import METHODS

# Okabe and Ito's palette for colour-blind readers, without yellow, which is too faint for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MATCHED, MISMATCHED = PALETTE[0], PALETTE[1]
MARKERS = "osD^vPX"

matplotlib.rcParams.update(
    {
        "figure.constrained_layout.use": True,
        "figure.dpi": 150,
        "font.size": 10,
        "axes.titlesize": 10,
        "figure.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "legend.frameon": False,
        "errorbar.capsize": 3,
        "svg.hashsalt": "l2rm_jax",
    }
)

Row = dict[str, str]


def method_style(method: str) -> dict:
    """Return colour, marker and label of a method, the same in every figure."""
    number = list(METHODS).index(method) % len(PALETTE)
    return {"color": PALETTE[number], "marker": MARKERS[number], "label": method}


def save(figure: Figure, out: Path, name: str, ending: str = "png") -> None:
    """Write `out/name.png`, or with another ending, and print its path."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.{ending}"
    about = {"metadata": {"Date": None}} if ending == "svg" else {}  # the same bytes on any day
    figure.savefig(file, **about)
    print(file)


def read_rows(files: Iterable[Path], columns: Sequence[str]) -> list[Row]:
    """Return the rows of several `results.csv`.

    Raises:
      DataError: a file is missing, has no row or lacks one of `columns`.
    """
    rows: list[Row] = []
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: no such file")
        with file.open(newline="") as lines:
            table = list(csv.DictReader(lines))
        missing = [column for column in columns if not table or column not in table[0]]
        if missing:
            raise DataError(
                f"{file}: {len(table)} rows without the column {', '.join(missing)}; a config "
                "field has a column only if the runs differ in it"
            )
        rows += table
    return rows


def group_rows(rows: Iterable[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows by their values of `columns`."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return dict(groups)


def curve(rows: Iterable[Row], x: str, y: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ascending values of column `x`, and mean and deviation of `y` over seeds.

    The standard deviation of a single seed is 0.

    Raises:
      DataError: a row has no value of `x` (a run with a mismatch index file has no `rate_asked`);
        or a seed occurs twice at one value of `x`, so the runs differ in more than the seed.
    """
    rows = list(rows)
    for row in rows:
        if not row[x]:
            raise DataError(f"{x}: empty in a row of {row['method']}, seed {row['seed']}")
    points = sorted(
        ((float(value), group) for (value,), group in group_rows(rows, x).items()),
        key=lambda point: point[0],
    )
    for value, group in points:
        seeds = [row["seed"] for row in group]
        if len(set(seeds)) < len(seeds):
            raise DataError(
                f"{x} {value:g}: found rows of seeds {', '.join(seeds)}, expected each seed once; "
                "the runs differ in another config field, so select those that share it"
            )
    samples = [[float(row[y]) for row in group] for _, group in points]
    deviations = [np.std(each, ddof=1) if len(each) > 1 else 0.0 for each in samples]
    means = [*map(np.mean, samples)]
    return np.array([value for value, _ in points]), np.array(means), np.array(deviations)


def setting(rows: Sequence[Row]) -> str:
    """Return data, head, protocol and seeds of the rows, as a title."""
    names = [{row[column] for row in rows} for column in ("data", "head", "protocol")]
    data, head, protocol = (", ".join(sorted(values)) for values in names)
    seeds = sorted({int(row["seed"]) for row in rows})
    return (
        f"{data}, head {head.upper()}, protocol {protocol}, "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    )


def title(config: ConfigDict) -> str:
    """Return data, method, head, mismatch and seed of a run, as a title."""
    return (
        f"{config.data.name}, {config.method}, head {config.model.head.upper()}, protocol "
        f"{config.mismatch.protocol}, mismatch rate {config.mismatch.rate:g}, seed {config.seed}"
    )
