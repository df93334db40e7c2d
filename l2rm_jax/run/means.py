"""Means of the step metrics over an epoch."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


class Means:
    """Means of the step metrics over an epoch, fetched from the device only when asked.

    A step with a number that is not finite enters no mean; it is counted.

    Args:
      state: `state` of the means that are continued; empty for new ones.
    """

    def __init__(self, state: Mapping[str, Any]):
        sums = state.get("sums", {})
        self._sums = {name: list(pair) for name, pair in sums.items()}  # name -> [sum, count]
        self._recent: list[dict[str, float]] = list(state.get("recent", ()))
        self.skipped: int = state.get("skipped", 0)
        self._pending: list[dict] = []

    @property
    def state(self) -> dict[str, Any]:
        """What has been fetched so far, as JSON holds it."""
        return {"sums": self._sums, "recent": self._recent, "skipped": self.skipped}

    def add(self, metrics: dict) -> None:
        self._pending.append(metrics)

    def fetch(self) -> list[tuple[int, dict[str, float]]]:
        """Fetches the metrics so far.

        Returns:
          Of each step that is skipped: how many steps ago it was, and what is not finite.
        """
        fetched, self._pending = jax.device_get(self._pending), []
        skipped = []
        for ago, found in zip(range(len(fetched))[::-1], fetched, strict=True):
            metrics = {name: float(x) for name, x in found.items()}
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
        """The mean of each metric over the steps fetched since the last flush.

        Of the metrics that the last of these steps has; empty if there is no such step.
        """
        recent, self._recent = self._recent, []
        names = recent[-1] if recent else ()
        return {name: float(np.mean([step[name] for step in recent])) for name in names}

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self._sums.items()}
