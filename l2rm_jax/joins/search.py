"""Explain the rows of a table by maps: propose, decide where each holds, fit again, repeat."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.joins import maps as rules
from l2rm_jax.joins import offers, windows
from l2rm_jax.joins.emission import View, emission
from l2rm_jax.joins.evidence import LEAST_IMAGES, Evidence, fit_evidence
from l2rm_jax.joins.maps import Map
from l2rm_jax.joins.path import WIDTH, best_path, pieces, runs
from l2rm_jax.joins.table import Table

STORED, NONE = 0, 1  # labels; those of further maps are higher
_BACK, _NONE_COST = 2.0, 6.0  # nats to enter these two
_TURNS = 5
_ACTIVE = 20  # most maps that are possible everywhere
_RULED = 8  # regions that all rules are tried on


@dataclass(frozen=True, eq=False)
class Explanation:
    """Maps, the map of each row, and the view of the rows by which they were found.

    Attributes:
      view: evidence of the last fit.
      maps: the join as stored, none, and further maps.
      labels: map of each row.
    """

    view: View
    maps: list[Map]
    labels: Int[np.ndarray, " P"]

    @property
    def is_empty(self) -> bool:
        """Whether no map but the stored one holds anywhere."""
        return not (self.labels > NONE).any()

    def join(self) -> Int[np.ndarray, " P"]:
        """Return the image of each row; -1 where nothing fits."""
        images = np.full(len(self.labels), -1)
        for s in np.unique(self.labels[self.labels != NONE]):
            own = self.labels == s
            images[own] = self.maps[s].images[own]
        return images


class _Search:
    """Maps with their emissions, and the most probable map of each row."""

    def __init__(self, view: View, known: list[Map], count: int) -> None:
        """Start from maps known from the turn before, and the number of pieces they held in."""
        self.view, self.used, self.pieces = view, len(known), count
        stored = Map("stored", {}, 0.0, view.table.stored)
        none = Map("none", {}, 0.0, np.full(len(view), -1))
        self.maps = [stored, none]
        self.emitted = np.stack([view.against, np.zeros(len(view), np.float32)])
        self.add([*known, *rules.near(view.table)])

    def add(self, offered: Iterable[Map]) -> None:
        """Add maps that are not known yet."""
        known = {m.name for m in self.maps}
        new = {m.name: m for m in offered if m.name not in known}
        if new:
            rows = [emission(self.view, m.images) for m in new.values()]
            self.maps, self.emitted = [*self.maps, *new.values()], np.vstack([self.emitted, *rows])
            self.labels = self._decode()

    def regions(self) -> list[tuple[int, int]]:
        """Return pieces in which rows fit badly."""
        emitted = self.emitted[self.labels, np.arange(len(self.view))]
        return windows.regions(self.view, emitted, self.labels, self.used)

    def explained(self) -> list[tuple[int, int]]:
        """Return the two longest runs of rows that follow several maps."""
        labels = self.labels
        several = [(a, b) for a, b in runs(labels > NONE) if np.diff(labels[a:b]).any()]
        return sorted(several, key=lambda x: x[0] - x[1])[:2]

    def _decode(self) -> Int[np.ndarray, " P"]:
        total = len(self.view)
        enter = np.array([m.cost for m in self.maps]) + math.log(total) + offers.SURE
        again = math.log(total / (self.pieces + 1)) + math.log(self.used + 1)
        known = slice(2, 2 + self.used)
        enter[known] = np.minimum(enter[known], again)
        enter[:2] = _BACK, _NONE_COST
        return best_path(self.emitted, enter, _active(self.emitted))


def follow(
    table: Table, evidence: Evidence, known: list[Map], seed: int, is_blind: bool
) -> Explanation:
    """Explain the rows, fit to the explained join, and again, until the join no longer changes.

    Args:
      table: the rows.
      evidence: models of the stored join, or of another one to start from.
      known: maps that the start is made of.
      seed: seed of the fits.
      is_blind: whether the stored join has nothing to fit to.
    """
    join, count = table.stored, 0
    for _ in range(_TURNS):
        view = View(table, evidence)
        found = _explain(view, known, count)
        known = found.maps[2:]
        count = sum(found.labels[a] > NONE for a, _ in pieces(found.labels))
        new = found.join()
        changed, join = np.count_nonzero(new != join), new
        fitted = new if is_blind else np.where(new >= 0, new, table.stored)
        images = len(np.unique(fitted[fitted >= 0]))
        if not known or changed <= max(3, len(table) // 500) or images < LEAST_IMAGES:
            break
        evidence = fit_evidence(table, fitted, seed)
    return found


def _explain(view: View, known: list[Map], count: int) -> Explanation:
    table, search = view.table, _Search(view, known, count)
    found = offers.periodic(view, search.maps, search.emitted)
    found += offers.colliding(view, 0, len(view))
    search.add([*found, *rules.by_ids(table), *rules.grouped(table)])
    search.add(m for area in search.regions() for m in windows.offsets(view, *area))
    found = []  # one rule for all rows of a piece may cost less than several maps that explain them
    for a, b in search.regions()[:_RULED] + search.explained():
        found += offers.arrangements(view, a, b)
        if b - a < len(view):
            found += offers.colliding(view, a, b)
    search.add(found)
    kept = np.union1d([STORED, NONE], search.labels)
    return Explanation(view, [search.maps[s] for s in kept], np.searchsorted(kept, search.labels))


def _active(emitted: Float32[np.ndarray, "S P"]) -> Int[np.ndarray, "blocks K"]:
    """Return the maps that may hold in each block: all if few, else those with most evidence."""
    states, total = emitted.shape
    count = -(-total // WIDTH)
    if states <= _ACTIVE:
        return np.tile(np.arange(states), (count, 1))
    padded = np.pad(emitted, ((0, 0), (0, count * WIDTH - total)))
    # Long runs by the sum of a block, short ones by the best sum of eight rows.
    blocks = padded.reshape(states, count, WIDTH).sum(axis=2)
    parts = padded.reshape(states, count, WIDTH // 8, 8).sum(axis=3).max(axis=2)
    kept = np.zeros((count, states), bool)
    kept[:, :2] = True
    for score in (blocks, parts):
        near = np.maximum(score, np.maximum(np.roll(score, 1, 1), np.roll(score, -1, 1)))
        np.put_along_axis(kept, np.argpartition(-near, 7, axis=0)[:8].T, True, axis=1)
    width = int(kept.sum(axis=1).max())
    order = np.argsort(~kept, axis=1, kind="stable")[:, :width]
    return np.where(np.take_along_axis(kept, order, axis=1), order, -1)
