"""What all figures share: their looks, and rows of `results.csv` as means over seeds."""

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

# Okabe and Ito's palette, which colour-blind readers tell apart; its yellow is too faint for lines.
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
    }
)

Row = dict[str, str]


def method_style(method: str) -> dict:
    """The same colour and marker for a method in every figure."""
    place = list(METHODS).index(method) % len(PALETTE)
    return {"color": PALETTE[place], "marker": MARKERS[place], "label": method}


def save(figure: Figure, out: Path, name: str) -> None:
    """Writes `out/name.png` and says so."""
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / f"{name}.png")
    print(out / f"{name}.png")


def read_rows(files: Iterable[Path], columns: Sequence[str]) -> list[Row]:
    """The rows of several `results.csv`.

    Raises:
      DataError: a file is missing, has no row or lacks one of `columns`.
    """
    rows: list[Row] = []
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: no such file")
        with file.open(newline="") as lines:
            found = list(csv.DictReader(lines))
        missing = [column for column in columns if not found or column not in found[0]]
        if missing:
            raise DataError(
                f"{file}: {len(found)} rows, without {', '.join(missing)}; a config key has a "
                "column where the runs differ in it"
            )
        rows += found
    return rows


def groups(rows: Iterable[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows with equal values of `columns` together."""
    found = defaultdict(list)
    for row in rows:
        found[tuple(row[column] for column in columns)].append(row)
    return dict(found)


def curve(rows: Iterable[Row], x: str, y: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ascending values of column `x`; mean over seeds and standard deviation of `y` (0 of one).

    Raises:
      DataError: a row has no `x` (a mismatch index file has no asked rate), or a seed occurs twice
        at a value of it: the rows differ in more than the seed.
    """
    rows = list(rows)
    for row in rows:
        if not row[x]:
            raise DataError(f"{x}: empty in a row of {row['method']}, seed {row['seed']}")
    values = sorted(
        ((float(at), of) for (at,), of in groups(rows, x).items()), key=lambda pair: pair[0]
    )
    for at, of in values:
        seeds = [row["seed"] for row in of]
        if len(set(seeds)) < len(seeds):
            raise DataError(
                f"{x} {at:g}: found rows of seeds {', '.join(seeds)}, expected each once; the runs "
                "differ in something else, so give tables that hold one setting"
            )
    sets = [[float(row[y]) for row in of] for _, of in values]
    deviations = [np.std(s, ddof=1) if len(s) > 1 else 0.0 for s in sets]
    return np.array([at for at, _ in values]), np.array([*map(np.mean, sets)]), np.array(deviations)


def setting(rows: Sequence[Row]) -> str:
    """Data, head, protocol and seeds of rows, for a title."""
    names = [{row[column] for row in rows} for column in ("data", "head", "protocol")]
    data, head, protocol = (", ".join(sorted(found)) for found in names)
    seeds = sorted({int(row["seed"]) for row in rows})
    return (
        f"{data}, head {head.upper()}, protocol {protocol}, "
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    )


def title(config: ConfigDict) -> str:
    """What was trained on what, for a figure of one run."""
    return (
        f"{config.data.name}, {config.method}, head {config.model.head.upper()}, protocol "
        f"{config.mismatch.protocol}, mismatch rate {config.mismatch.rate:g}, seed {config.seed}"
    )
