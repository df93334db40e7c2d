"""Weigh the evidence of each row for a map, in nats: 0 is a random pair."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.joins.evidence import LEAST, Evidence
from l2rm_jax.joins.table import Table, shared_weights

_CROWDED = 0.1  # correlation of further captions of an image


@dataclass(frozen=True, eq=False)
class View:
    """A table, and evidence on it from models of a join of its rows."""

    table: Table
    evidence: Evidence

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def stored(self) -> Float32[np.ndarray, " P"]:
        """Nats of each row with its stored image."""
        return self.evidence.nats(np.arange(len(self)), self.table.stored)

    @cached_property
    def against(self) -> Float32[np.ndarray, " P"]:
        """The same, weighted: the emission of the map "as stored"."""
        return self.table.stored_weight * self.stored


def emission(view: View, images: Int[np.ndarray, " P"]) -> Float32[np.ndarray, " P"]:
    """Return the evidence of all rows for a map; rows without an image speak against it."""
    table, rows = view.table, np.flatnonzero(images >= 0)
    value = np.full(len(view), LEAST, np.float32)
    weight = _weights(table, images)
    other = rows[images[rows] != table.stored[rows]]
    value[rows] = view.stored[rows]
    value[other] = view.evidence.nats(other, images[other])
    weight[rows] *= view.evidence.apart(rows, images[rows], table.stored[rows])
    return view.against + weight * (value - view.stored)


def _weights(table: Table, images: np.ndarray) -> Float32[np.ndarray, " P"]:
    """Return weights that count rows that say the same of a map as little more than one."""
    there = images >= 0
    held = np.bincount(images[there], minlength=len(table.images) + 1)[images]
    crowd = np.where(there, np.maximum(held - table.usual, 0), 0)
    target = np.where(there, table.scene[images], -1)
    both = np.minimum(shared_weights(table.scene[table.stored], target), table.said_weight)
    return np.minimum(both, 1 / (1 + _CROWDED * crowd)).astype(np.float32)
