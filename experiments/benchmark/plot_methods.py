"""Test rSum by rate of mismatch: the recipe, the best published method, and what bounds them.

python -m experiments.benchmark.plot_methods experiments/results/benchmark_flickr8k_vectors.csv \
    --out=figures

Reads the rows of a benchmark (`experiments.benchmark --csv`), and draws those with protocol
`image`. The best published method has the highest mean validation rSum of all by its own split.
Where no pair is mismatched, the ceiling is the recipe on all pairs.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from experiments.benchmark.overview import LINES, RECIPE, best_published
from experiments.benchmark.records import Record, read_records
from experiments.benchmark.statistics import mean_of
from experiments.benchmark.tables import by_cell
from experiments.figure import MARKERS, PALETTE, figure_parser, save
from experiments.script import start

PROTOCOL = "image"
CEILING, NOTHING_WRONG = "recipe truth", "recipe unjudged"


def main() -> None:
    parser = figure_parser(__doc__)
    parser.add_argument("rows", type=Path, help="rows of a benchmark")
    arguments = parser.parse_args()
    save(plot(read_records(arguments.rows)), arguments.out, "methods", "svg")


def plot(records: Sequence[Record]) -> Figure:
    """Draw mean and standard deviation over seeds."""
    best = best_published(records)
    lines = {
        "recipe, true pairs only": (CEILING, NOTHING_WRONG),
        "recipe": (RECIPE,),
        f"{best}, cross-fitted split": (LINES[best][1],),
        f"{best}, own split": (best,),
        "cca, all pairs": ("cca",),
    }
    values = by_cell([each for each in records if each["protocol"] == PROTOCOL], "test_rsum")
    figure = Figure(figsize=(6.4, 3.8))
    axes = figure.subplots()
    for number, (label, rows) in enumerate(lines.items()):
        found = {
            float(key[3]): [*each.values()]
            for row in rows[::-1]
            for key, each in values.items()
            if key[0] == row and (row != NOTHING_WRONG or float(key[3]) == 0)
        }
        rates = sorted(found)
        means = [mean_of(found[rate]) for rate in rates]
        style = {"color": PALETTE[number], "marker": MARKERS[number], "label": label}
        axes.errorbar(
            rates, [each.mean for each in means], [each.deviation for each in means], **style
        )
    axes.set(xlabel="mismatch rate", ylabel="test rSum (of 600)")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    start(main)
