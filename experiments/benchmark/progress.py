"""Describe the progress of a benchmark: finished runs, running ones, time left."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.benchmark.suite import Cell
from experiments.papers.runs import epoch_records, total_epochs
from l2rm_jax.console import clock
from l2rm_jax.run.results import RESULTS_FILE


def progress_line(cells: Sequence[Cell], out: Path, running: Sequence[Path], at_a_time: int) -> str:
    """Return one line: runs done, time left once a run has finished, epochs of the running ones.

    A run is expected to take as long as the finished ones of its row and head, scaled by its
    epochs; if there is none, as long as the mean of all.

    Args:
      cells: the runs.
      out: directory of the runs' own directories.
      running: directories of the running ones.
      at_a_time: how many train side by side.
    """
    epochs = {path.name: _epochs_done(path) for path in running}
    rates, waiting = defaultdict(list), []
    for cell in cells:
        kind, total = (cell.row, cell.config.model.head), total_epochs(cell.config)
        results = out / cell.name / RESULTS_FILE
        if results.exists():
            rates[kind].append(json.loads(results.read_text())["seconds"] / total)
        else:
            waiting.append((kind, max(total - epochs.get(cell.name, 0), 0)))
    parts = [f"{len(cells) - len(waiting)} of {len(cells)} runs done"]
    if rates:
        mean = np.mean([rate for each in rates.values() for rate in each])
        left = sum(float(np.mean(rates.get(kind, mean))) * count for kind, count in waiting)
        parts.append(f"about {clock(left / at_a_time)} left")
    return ", ".join(parts + [f"{name} after epoch {done}" for name, done in epochs.items()])


def _epochs_done(workdir: Path) -> int:
    records = epoch_records(workdir)
    return records[-1]["epoch"] if records else 0
