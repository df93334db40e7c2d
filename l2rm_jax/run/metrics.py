"""Means of the step metrics: over an epoch, and since the last log line."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


class Means:
    """Means of the step metrics over an epoch.

    Metrics stay on the device until `fetch`, so that training need not wait for them. A step with
    a metric that is not finite is left out of all means and counted in `skipped`.

    Args:
      state: the property `state` of earlier means to continue; a mapping without its keys starts
        new means.
    """

    def __init__(self, state: Mapping[str, Any]):
        sums = state.get("sums", {})
        self._sums = {name: list(pair) for name, pair in sums.items()}  # name -> [sum, count]
        self._recent: list[dict[str, float]] = list(state.get("recent", ()))
        self.skipped: int = state.get("skipped", 0)
        self._pending: list[dict] = []

    @property
    def state(self) -> dict[str, Any]:
        """Sums, counts and recent values fetched so far, as JSON values."""
        return {"sums": self._sums, "recent": self._recent, "skipped": self.skipped}

    def add(self, metrics: dict) -> None:
        """Add the metrics of one step, scalars that may still be on the device."""
        self._pending.append(metrics)

    def fetch(self) -> list[tuple[int, dict[str, float]]]:
        """Fetch the added metrics from the device and include them in the means.

        Returns:
          For each skipped step: its distance from the newest step (0 for the newest itself), and
          its metrics that are not finite.
        """
        fetched, self._pending = jax.device_get(self._pending), []
        skipped = []
        for ago, values in zip(range(len(fetched))[::-1], fetched, strict=True):
            metrics = {name: float(x) for name, x in values.items()}
            if bad := {name: x for name, x in metrics.items() if not math.isfinite(x)}:
                skipped.append((ago, bad))
                continue
            self._recent.append(metrics)
            for name, value in metrics.items():
                pair = self._sums.setdefault(name, [0.0, 0])
                pair[0] += value
                pair[1] += 1
        self.skipped += len(skipped)
        return skipped

    def flush(self) -> dict[str, float]:
        """Mean of each metric over the steps fetched since the last flush.

        Includes the metrics of the newest of these steps; empty if there are no such steps.
        """
        recent, self._recent = self._recent, []
        names = recent[-1] if recent else ()
        return {name: float(np.mean([step[name] for step in recent])) for name in names}

    def means(self) -> dict[str, float]:
        """Mean of each metric over all steps of the epoch that have it."""
        return {name: total / count for name, (total, count) in self._sums.items()}
