"""Precision of matched pairs and estimated rate, in sample against out of fold, by mismatch rate.

RATES=0.2,0.4,0.6,0.8
python -m experiments.judging.crossfit --path=DIR --rate=$RATES --seed=0,1,2 --csv=out.csv
python -m experiments.judging.crossfit --path=DIR --rate=$RATES --seed=0,1,2 --csv=in.csv \
    --in_sample
python -m experiments.judging.plot_crossfit --out_of_fold=out.csv --in_sample=in.csv --out=figures

Without the two files, the measured rows of this repository are drawn.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.figure import MARKERS, PALETTE, Row, curve, read_rows, save
from experiments.papers.sweep import start
from l2rm_jax.errors import DataError

RESULTS = Path(__file__).parents[1] / "results"
COLUMNS = ("images", "protocol", "asked", "precision", "rate")
PANELS = {
    "precision": "precision of matched pairs",
    "rate": "estimated rate of mismatch",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name in ("out_of_fold", "in_sample"):
        file = RESULTS / ("crossfit.csv" if name == "out_of_fold" else "crossfit_in_sample.csv")
        parser.add_argument(
            f"--{name}", type=Path, default=file, help="CSV of experiments.judging.crossfit"
        )
    parser.add_argument("--images", default="2000", help="number of training images")
    parser.add_argument("--protocol", default="image", help="protocol of the mismatch")
    parser.add_argument("--out", required=True, type=Path, help="directory of the figure")
    flags = parser.parse_args()
    setting = {"images": flags.images, "protocol": flags.protocol}
    files = {"out of fold": flags.out_of_fold, "in sample": flags.in_sample}
    rows = {name: select(read_rows([file], COLUMNS), setting) for name, file in files.items()}
    save(plot(rows), flags.out, "crossfit")


def select(rows: list[Row], setting: dict[str, str]) -> list[Row]:
    """Return the rows of one number of images and one protocol, without those of clean data.

    Raises:
      DataError: there are none.
    """
    kept = [row for row in rows if setting.items() <= row.items() and float(row["asked"])]
    if not kept:
        raise DataError(f"no row with mismatched pairs and {setting}")
    return kept


def plot(rows: dict[str, list[Row]]) -> Figure:
    """Plot both quantities by the true rate, a curve for each way to judge.

    Args:
      rows: rows of the results by way to judge; means over seeds are drawn, with deviations.
    """
    figure = Figure(figsize=(8.4, 3.6))
    panels = figure.subplots(1, 2)
    for axes, (column, label) in zip(panels, PANELS.items(), strict=True):
        for (name, group), colour, marker in zip(rows.items(), PALETTE, MARKERS, strict=False):
            x, mean, deviation = curve(group, "asked", column)
            axes.errorbar(x, mean, deviation, color=colour, marker=marker, label=name)
        ends = np.array([min(x), max(x)])
        by_chance = 1 - ends if column == "precision" else ends
        words = "all pairs alike" if column == "precision" else "the true rate"
        axes.plot(ends, by_chance, color="#777777", linestyle=":", label=words)
        axes.set(xlabel="rate of mismatch", ylabel=label, ylim=(0, 1))
        axes.legend()
    return figure


if __name__ == "__main__":
    start(main)
