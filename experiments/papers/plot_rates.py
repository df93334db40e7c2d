"""Test rSum against the mismatch rate, one line per method (cf. L2RM Tab. 1).

python -m experiments.papers.plot_rates runs/scenes/results.csv --out=figures

Reads one or more `results.csv` of `experiments.papers.sweep`. Each combination of data set, head
and protocol gets a panel; error bars are standard deviations over seeds.
"""

from pathlib import Path

from matplotlib.figure import Figure

from experiments.figure import Row, curve, group_rows, method_style, read_rows, save, setting
from experiments.script import new_parser, start


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="results.csv of a sweep")
    parser.add_argument("--out", required=True, type=Path, help="directory of the figure")
    arguments = parser.parse_args()
    save(plot(read_rows(arguments.results, ["rate_asked", "rsum"])), arguments.out, "rates")


def plot(rows: list[Row]) -> Figure:
    panels = group_rows(rows, "data", "head", "protocol")
    figure = Figure(figsize=(5.2 * len(panels), 3.8))
    for axes, panel in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.values(), strict=True
    ):
        for (method,), runs in group_rows(panel, "method").items():
            x, mean, deviation = curve(runs, "rate_asked", "rsum")
            axes.errorbar(x, mean, deviation, **method_style(method))
        axes.set(xlabel="mismatch rate", ylabel="test rSum (of 600)", title=setting(panel))
        axes.set_xticks(sorted({float(row["rate_asked"]) for row in panel}))
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


if __name__ == "__main__":
    start(main)
