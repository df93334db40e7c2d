"""Weigh the evidence of each row for a map, in nats: 0 is a random pair."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int

from l2rm_jax.joins.evidence import Evidence
from l2rm_jax.joins.table import Table, shared_weights

SAFE = 0.9  # power of the ratios, as they are estimates
LEAST, MOST = -3.0, 3.5  # nats of a row
_CROWDED = 0.1  # correlation of further captions of an image
_SAME = 0.65  # cosine from which captions say the same


@dataclass(frozen=True, eq=False)
class View:
    """A table, evidence on it, and the nats of each row for its stored image.

    Attributes:
      table: the rows.
      evidence: models of a join of these rows.
      stored: capped nats of each row with its stored image.
      against: the same, weighted: the emission of the map "as stored".
    """

    table: Table
    evidence: Evidence
    stored: Float32[np.ndarray, " P"]
    against: Float32[np.ndarray, " P"]

    def __len__(self) -> int:
        return len(self.table)


def make_view(table: Table, evidence: Evidence) -> View:
    """Compute the emission of the stored join."""
    stored = capped(evidence, np.arange(len(table)), table.stored).astype(np.float32)
    return View(table, evidence, stored, table.stored_weight * stored)


def capped(
    evidence: Evidence, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return nats of captions with images, limited for a single row."""
    return np.clip(evidence.nats(rows, images), LEAST, MOST) * np.float32(SAFE)


def capped_block(
    view: View, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " m"] | None = None
) -> Float32[np.ndarray, "n m"]:
    """Return nats of captions with all images, weighted as parts of an independent row."""
    block = view.evidence.block(rows, images)
    return np.clip(block, LEAST, MOST, out=block) / np.float32(view.table.siblings)


def moved(
    view: View, rows: Int[np.ndarray, " n"], images: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return nats of captions with images that they are not stored with.

    A caption similar to the captions of an image fits it, whatever happened, and is little
    evidence. If the image has the very same text, a join may have given it to both.
    """
    table = view.table
    e = capped(view.evidence, rows, images)
    weight = np.clip(
        (_SAME - np.einsum("nd,nd->n", table.says[rows], table.said_of[images])) * 2, 0, 1
    )
    times = np.bincount(table.said)
    twice = times[table.said] > 1
    if twice.any():
        stands = np.unique(table.said[twice] * len(table.images) + table.stored[twice])
        said = table.said[rows]
        there = np.isin(said * len(table.images) + images, stands)
        weight = np.where(there, 1 / np.maximum(times[said] - 1, 1), weight)
    return np.where(e > 0, e * weight, e)


def emission(view: View, images: Int[np.ndarray, " P"]) -> Float32[np.ndarray, " P"]:
    """Return the evidence of all rows for a map; rows without an image speak against it."""
    rows = np.flatnonzero(images >= 0)
    value = np.full(len(view), LEAST * SAFE, np.float32)
    weight = _weights(view.table, images)
    other = rows[images[rows] != view.table.stored[rows]]
    value[rows] = view.stored[rows]
    value[other] = moved(view, other, images[other])
    weight[rows] *= view.evidence.apart(rows, images[rows], view.table.stored[rows])
    return view.against + weight * (value - view.stored)


def _weights(table: Table, images: np.ndarray) -> Float32[np.ndarray, " P"]:
    """Return weights that count rows that say the same of a map as little more than one."""
    there = images >= 0
    held = np.bincount(images[there], minlength=len(table.images) + 1)[images]
    crowd = np.where(there, np.maximum(held - table.usual, 0), 0)
    target = np.where(there, table.scene[images], -1)
    both = np.minimum(shared_weights(table.scene[table.stored], target), table.said_weight)
    return np.minimum(both, 1 / (1 + _CROWDED * crowd)).astype(np.float32)
