"""Explain the rows of a table by maps: propose, decide where each holds, fit again, repeat."""

import math
from collections import Counter
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
_TRIES = 2  # searches of the same region


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


@dataclass(eq=False)
class _Search:
    """State of a search: maps with their emissions."""

    view: View
    maps: list[Map]
    emitted: Float32[np.ndarray, "S P"]
    used: int = 0  # maps known from the turn before
    pieces: int = 0  # in which they held

    def add(self, offered: Iterable[Map]) -> bool:
        """Add maps that are not known yet; return whether there are any."""
        known = {m.name for m in self.maps}
        new = {m.name: m for m in offered if m.name not in known}
        if new:
            rows = [emission(self.view, m.images) for m in new.values()]
            self.maps, self.emitted = [*self.maps, *new.values()], np.vstack([self.emitted, *rows])
        return bool(new)

    def decode(self) -> Int[np.ndarray, " P"]:
        """Return the most probable map of each row."""
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
    tried: Counter = Counter()
    join, count = table.stored, 0
    for _ in range(_TURNS):
        view = View(table, evidence)
        found = _explain(view, known, count, tried)
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


def _explain(view: View, known: list[Map], count: int, tried: Counter) -> Explanation:
    table = view.table
    stored = Map("stored", {}, 0.0, table.stored)
    none = Map("none", {}, 0.0, np.full(len(table), -1))
    emitted = [view.against, np.zeros(len(view), np.float32)]
    emitted += [emission(view, m.images) for m in known]
    search = _Search(view, [stored, none, *known], np.stack(emitted), len(known), count)
    search.add(rules.near(table))
    whole = offers.periodic(view, search.maps, search.emitted, 0, len(view))
    whole += offers.colliding(view, 0, len(view))
    search.add([*whole, *rules.by_ids(table), *rules.grouped(table)])
    labels = search.decode()
    for stage, most in ((_windows, 30), (_rules, 8), (_windows, 30)):
        found = []
        emitted = search.emitted[labels, np.arange(len(view))]
        areas = windows.regions(view, emitted, labels, search.used)[:most]
        if stage is _rules:  # one rule may explain several pieces, which costs less
            areas += _explained(labels)
        for a, b in areas:
            mark = stage.__name__, a // 8, b // 8
            tried[mark] += 1
            if tried[mark] <= _TRIES:
                found += stage(search, a, b)
        if search.add(found):
            labels = search.decode()
    kept = np.union1d([STORED, NONE], labels)
    return Explanation(view, [search.maps[s] for s in kept], np.searchsorted(kept, labels))


def _explained(labels: Int[np.ndarray, " P"]) -> list[tuple[int, int]]:
    """Return the two longest runs of rows that follow several maps."""
    several = [(a, b) for a, b in runs(labels > NONE) if np.diff(labels[a:b]).any()]
    return sorted(several, key=lambda x: x[0] - x[1])[:2]


def _windows(search: _Search, a: int, b: int) -> list[Map]:
    return windows.offsets(search.view, a, b)


def _rules(search: _Search, a: int, b: int) -> list[Map]:
    """Return rules that need all rows of a piece, or most of them."""
    view = search.view
    found = offers.arrangements(view, a, b)
    if b - a < len(view):
        found += offers.periodic(view, search.maps, search.emitted, a, b)
        found += offers.colliding(view, a, b)
    return found


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
