"""L2RM on Flickr8k beside the authors' code: validations of six seeds, and of one run of theirs.

python -m experiments.benchmark --suite=l2rm-flickr8k --path=DIR --out=runs --row=l2rm --rate=0.4
python -m experiments.papers.authors_code runs/l2rm-flickr8k

Their run (PyTorch, on a CPU) had the same pairs, validation images and settings.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.benchmark.tables import Cell, Table, markdown_table
from experiments.papers.runs import RECALLS, Run, find_runs, read_run
from experiments.papers.sweep import start
from l2rm_jax.data import mismatch
from l2rm_jax.errors import ConfigError

# The runs that are like theirs: method, head, mismatch.
GROUP = ("l2rm", "saf", "image0.4")
THEIR_BEST = (22.5, 49.0, 61.5, 14.2, 36.3, 48.7, 232.2)
THEIR_RSUM = {2: "150", 3: "190", 4: "206", 5: "220"}  # by epoch; others are not known
SPLIT = {  # column by field, with their range over the epochs
    "split_accuracy": "accuracy of the split (theirs 0.796 to 0.804)",
    "split_precision": "precision of the matched (theirs 0.764 to 0.779)",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="directory of the runs")
    directory = parser.parse_args().runs
    runs = [run for run in map(read_run, find_runs(directory)) if run.results and _is_like(run)]
    if not runs:
        raise ConfigError(f"{directory}: no run of {', '.join(GROUP)} has finished")
    for table in (best_table(runs), epoch_table(runs)):
        print(f"{table.title}\n\n{markdown_table(table)}\n")


def _is_like(run: Run) -> bool:
    config = run.config
    return (config.method, config.model.head, mismatch.label(config.mismatch)) == GROUP


def best_table(runs: Sequence[Run]) -> Table:
    """Return the best validation of each run, their mean and deviation, and that of the authors."""
    values = np.array([[run.best[name] for name in RECALLS] for run in runs])
    lines = [(run.name, line) for run, line in zip(runs, values, strict=True)]
    lines.append(("mean", values.mean(0)))
    if len(runs) > 1:
        lines.append(("standard deviation", values.std(0, ddof=1)))
    lines.append(("the authors' code", THEIR_BEST))
    rows = [(Cell(name), *(Cell(f"{value:.1f}") for value in line)) for name, line in lines]
    return Table("Best validation", ("run", *RECALLS), rows)


def epoch_table(runs: Sequence[Run]) -> Table:
    """Return means over the runs after each epoch."""

    def mean(epoch: int, field: str, form: str) -> Cell:
        records = [each for run in runs for each in run.records if each["epoch"] == epoch]
        values = [record[field] for record in records if field in record]
        return Cell(format(np.mean(values), form) if values else "")

    rows = [
        (
            Cell(str(epoch)),
            mean(epoch, "rsum", ".1f"),
            Cell(THEIR_RSUM.get(epoch, "")),
            *(mean(epoch, field, ".3f") for field in SPLIT),
        )
        for epoch in range(1, 1 + max(run.epochs for run in runs))
    ]
    columns = ("after epoch", "validation rSum", "the authors' code", *SPLIT.values())
    return Table("Mean of the runs by epoch", columns, rows)


if __name__ == "__main__":
    start(main, prepare=False)
