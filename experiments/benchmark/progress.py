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


class Progress:
    """Progress of all runs of a suite.

    Args:
      cells: the runs.
      out: directory of the runs' own directories.
      at_a_time: how many train side by side.
    """

    def __init__(self, cells: Sequence[Cell], out: Path, at_a_time: int):
        self._cells, self._out, self._at_a_time = cells, out, at_a_time
        self._seconds: dict[str, float] = {}  # of finished runs

    def line(self, running: Sequence[Path]) -> str:
        """One line: runs done, time left, and the epochs of what runs."""
        for cell in self._cells:
            results = self._out / cell.name / RESULTS_FILE
            if cell.name not in self._seconds and results.exists():
                self._seconds[cell.name] = json.loads(results.read_text())["seconds"]
        done = {path.name: _epochs_done(path) for path in running}
        parts = [f"{len(self._seconds)} of {len(self._cells)} runs done"]
        if (left := self._seconds_left(done)) is not None:
            parts.append(f"about {clock(left)} left")
        parts += [f"{name} after epoch {epochs}" for name, epochs in done.items()]
        return ", ".join(parts)

    def _seconds_left(self, done: dict[str, int]) -> float | None:
        """Expected seconds; None until a run has finished.

        A run takes as long as the finished ones of its row and head, scaled by its epochs; if there
        is none, as long as the mean of all.
        """
        if not self._seconds:
            return None
        rates, left = defaultdict(list), 0.0
        for cell in self._cells:
            if cell.name in self._seconds:
                rates[_kind(cell)].append(self._seconds[cell.name] / total_epochs(cell.config))
        mean = np.mean([rate for each in rates.values() for rate in each])
        for cell in self._cells:
            if cell.name not in self._seconds:
                epochs = total_epochs(cell.config) - done.get(cell.name, 0)
                left += max(epochs, 0) * float(np.mean(rates.get(_kind(cell), mean)))
        return left / self._at_a_time


def _kind(cell: Cell) -> tuple[str, str]:
    return cell.row, cell.config.model.head


def _epochs_done(workdir: Path) -> int:
    records = epoch_records(workdir)
    return records[-1]["epoch"] if records else 0
