"""Test recalls against rho, the transported share of the mass (L2RM Fig. 4).

python -m experiments.papers.sweep --config=scenes:long --out=runs/rho --set mismatch.rate=0.6 \
    --vary l2rm.rho=0.05,0.1,0.3,0.5,0.7,0.9 --vary seed=0,1
python -m experiments.papers.plot_rho runs/rho/results.csv --out=figures
"""

from pathlib import Path

from matplotlib.figure import Figure

from experiments.figure import MARKERS, PALETTE, Row, curve, group_rows, read_rows, save, setting
from experiments.script import new_parser, start
from l2rm_jax.errors import DataError
from l2rm_jax.evaluation.recall import RECALL_AT

DIRECTIONS = {"i2t": "image to text", "t2i": "text to image"}


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("results", type=Path, help="results.csv of a sweep over l2rm.rho")
    parser.add_argument("--out", required=True, type=Path, help="directory of the figure")
    arguments = parser.parse_args()
    save(plot(read_rows([arguments.results], ["l2rm.rho"])), arguments.out, "rho")


def plot(rows: list[Row]) -> Figure:
    """Plot one panel per direction.

    Raises:
      DataError: the rows differ in more than rho and the seed.
    """
    settings = group_rows(rows, "data", "method", "head", "protocol", "rate_asked")
    if len(settings) > 1:
        raise DataError(
            f"found {len(settings)} settings of data, method, head, protocol and rate, expected one"
        )
    figure = Figure(figsize=(8.4, 3.8))
    method, rate = rows[0]["method"], float(rows[0]["rate_asked"])
    figure.suptitle(f"{method}, {setting(rows)}, mismatch rate {rate:g}")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (way, name) in zip(panels, DIRECTIONS.items(), strict=True):
        for k, colour, marker in zip(RECALL_AT, PALETTE, MARKERS, strict=False):
            x, mean, deviation = curve(rows, "l2rm.rho", f"{way}_r{k}")
            axes.errorbar(x, mean, deviation, color=colour, marker=marker, label=f"R@{k}")
        axes.set(xlabel="rho (transported share)", title=name)
    panels[0].set_ylabel("test recall (%)")
    panels[0].set_ylim(bottom=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


if __name__ == "__main__":
    start(main)
