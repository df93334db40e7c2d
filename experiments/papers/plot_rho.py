"""Test recalls against rho, the transported share of the mass (L2RM Fig. 4).

python -m experiments.papers.sweep --config=scenes:long --out=runs/rho --set mismatch.rate=0.6 \
    --vary l2rm.rho=0.05,0.1,0.3,0.5,0.7,0.9 --vary seed=0,1
python -m experiments.papers.plot_rho runs/rho/results.csv --out=figures
"""

from pathlib import Path

from matplotlib.figure import Figure

from experiments.benchmark.statistics import mean_of
from experiments.figure import MARKERS, PALETTE, figure_parser, save
from experiments.papers.plot_validation import WAYS
from experiments.script import read_rows, start
from l2rm_jax.errors import DataError
from l2rm_jax.evaluation.recall import RECALL_AT

RHO = "l2rm.rho"
Row = dict[str, str]


def main() -> None:
    parser = figure_parser(__doc__)
    parser.add_argument("results", type=Path, help="results.csv of a sweep over l2rm.rho")
    arguments = parser.parse_args()
    rows = read_rows(arguments.results)
    if not rows or RHO not in rows[0]:
        raise DataError(
            f"{arguments.results}: found {len(rows)} rows without the column {RHO}, expected the "
            "results of a sweep over it"
        )
    save(plot(rows), arguments.out, "rho")


def plot(rows: list[Row]) -> Figure:
    """Plot one panel per direction: means and standard deviations over seeds.

    Raises:
      DataError: the rows differ in more than rho and the seed.
    """
    names = "method", "data", "head", "protocol", "rate_asked"
    settings = {tuple(row[name] for name in names) for row in rows}
    by_rho: dict[float, dict[str, Row]] = {}
    for row in rows:
        by_rho.setdefault(float(row[RHO]), {})[row["seed"]] = row
    if len(settings) > 1 or sum(map(len, by_rho.values())) < len(rows):
        raise DataError(
            f"found {len(rows)} rows of {len(settings)} settings of {', '.join(names)}, expected "
            "one setting, and each rho and seed once"
        )
    [(method, data, head, protocol, rate)] = settings
    figure = Figure(figsize=(8.4, 3.8))
    figure.suptitle(
        f"{method}, {data}, head {head.upper()}, protocol {protocol}, seeds "
        f"{', '.join(sorted({row['seed'] for row in rows}, key=int))}, "
        f"mismatch rate {float(rate):g}"
    )
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (way, name) in zip(panels, WAYS.items(), strict=True):
        for k, colour, marker in zip(RECALL_AT, PALETTE, MARKERS, strict=False):
            means = [
                mean_of([float(row[f"{way}_r{k}"]) for row in by_rho[rho].values()])
                for rho in sorted(by_rho)
            ]
            points = [each.mean for each in means], [each.deviation for each in means]
            style = {"color": colour, "marker": marker, "label": f"R@{k}"}
            axes.errorbar(sorted(by_rho), *points, **style)
        axes.set(xlabel="rho (transported share)", title=name)
    panels[0].set_ylabel("test recall (%)")
    panels[0].set_ylim(bottom=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


if __name__ == "__main__":
    start(main)
