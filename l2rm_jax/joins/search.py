"""Explain the rows of a table by maps: propose, decide where each holds, fit again, repeat."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.joins import maps as rules
from l2rm_jax.joins import offers, windows
from l2rm_jax.joins.emission import View, capped, emission, make_view
from l2rm_jax.joins.evidence import LEAST_IMAGES, Fits
from l2rm_jax.joins.maps import OFFSETS, Map, Orders
from l2rm_jax.joins.path import WIDTH, best_path, pieces, runs
from l2rm_jax.joins.table import Table

STORED, NONE = 0, 1  # labels; those of further maps are higher
_BACK, _NONE_COST = 2.0, 6.0  # nats to enter these two
_TURNS = 5
_ACTIVE = 20  # most maps that are possible everywhere
_PLACES = 20  # runs of a frequent map
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
    """State of a search: maps with their emissions, and how often each region was tried."""

    orders: Orders
    view: View
    maps: list[Map]
    emitted: Float32[np.ndarray, "S P"]
    tried: Counter = field(default_factory=Counter)
    used: int = 0  # maps known from the turn before
    pieces: int = 0  # in which they held
    frequent: int = 0  # map that holds in many places; 0: none

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
        enter[self.frequent] = min(enter[self.frequent], math.log(total / _PLACES))
        enter[:2] = _BACK, _NONE_COST
        return best_path(self.emitted, enter, _active(self.emitted))


def follow(
    table: Table, orders: Orders, fits: Fits, start: Map, known: list[Map], is_blind: bool
) -> Explanation:
    """Explain the rows, fit to the explained join, and again, until the join no longer changes.

    Args:
      table: the rows.
      orders: readings of its ids and texts.
      fits: models of joins of these rows.
      start: the join to start from.
      known: maps that the start is made of.
      is_blind: whether the stored join has nothing to fit to.
    """
    tried: Counter = Counter()
    join, fitted, count = table.stored, start.images, 0
    for _ in range(_TURNS):
        view = make_view(table, fits(fitted))
        search = _explain(view, orders, known, count, tried)
        labels = search.decode()
        found = _used(view, search.maps, labels)
        known = found.maps[2:]
        count = sum(found.labels[a] > NONE for a, _ in pieces(found.labels))
        new = found.join()
        changed, join = np.count_nonzero(new != join), new
        fitted = new if is_blind else np.where(new >= 0, new, table.stored)
        images = len(np.unique(fitted[fitted >= 0]))
        if not known or changed <= max(3, len(table) // 500) or images < LEAST_IMAGES:
            break
    if not known:
        return found
    return _plainer(_simpler(_in_part(_filled(found)), orders))


def _explain(view: View, orders: Orders, known: list[Map], count: int, tried: Counter) -> _Search:
    table = view.table
    first = [rules.stored(table), rules.none(table), *known]
    emitted = [view.against, np.zeros(len(view), np.float32)]
    emitted += [emission(view, m.images) for m in known]
    search = _Search(orders, view, first, np.stack(emitted), tried, len(known), count)
    search.add(rules.near(table))
    whole = offers.periodic(view, search.maps, search.emitted, 0, len(view))
    whole += offers.colliding(view, orders, 0, len(view)) + rules.by_number(table, orders)
    search.add([*whole, *rules.by_keys(table), *rules.grouped(table, orders)])
    search.frequent = _frequent(search)
    labels = search.decode()
    for stage, most in ((_windows, 30), (_rules, 8), (_windows, 30)):
        found = []
        emitted = search.emitted[labels, np.arange(len(view))]
        for a, b in windows.regions(view, emitted, labels, search.used)[:most]:
            mark = stage.__name__, a // 8, b // 8
            tried[mark] += 1
            if tried[mark] <= _TRIES:
                found += stage(search, a, b)
        if search.add(found):
            labels = search.decode()
    if table.usual > 1:
        search.add(offers.finer(view, search.maps, labels, search.emitted))
    return search


def _frequent(search: _Search) -> int:
    """Return the offset that holds in many short runs, none of which would be sure; 0 for none.

    The other offsets are placebos: where nothing happened, all of them gain as little.
    """
    total, against = len(search.view), search.view.against
    enter = np.array([_BACK, math.log(total / _PLACES)])
    gains = {}
    for s, m in enumerate(search.maps):
        if m.name[0] in OFFSETS and abs(m.name[1]) <= rules.REACH:
            one = np.stack([against, search.emitted[s]])
            on = best_path(one, enter, np.tile([0, 1], (-(-total // WIDTH), 1))) == 1
            costs = (enter[1] + _BACK) * len(runs(on))
            gains[s] = float((search.emitted[s] - against)[on].sum()) - costs
    if len(gains) < 2:
        return 0
    second, best = sorted(gains, key=gains.__getitem__)[-2:]
    return best if gains[best] > 2 * max(gains[second], 0) + 2 * offers.SURE else 0


def _windows(search: _Search, a: int, b: int) -> list[Map]:
    return windows.offsets(search.view, a, b)


def _rules(search: _Search, a: int, b: int) -> list[Map]:
    """Return rules that need all rows of a piece, or most of them."""
    view = search.view
    found = offers.arrangements(view, search.orders, a, b)
    found += windows.slopes(view, search.orders, a, b) + windows.in_turn(view, a, b)
    if b - a < len(view):
        found += offers.periodic(view, search.maps, search.emitted, a, b)
        found += offers.colliding(view, search.orders, a, b)
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


def _used(view: View, maps: list[Map], labels: np.ndarray) -> Explanation:
    """Return an explanation without the maps that hold nowhere."""
    kept = np.union1d([STORED, NONE], labels)
    return Explanation(view, [maps[s] for s in kept], np.searchsorted(kept, labels))


def _filled(found: Explanation) -> Explanation:
    """Let rows between two runs of one map follow it, unless they speak against it."""
    labels, total = found.labels.copy(), len(found.labels)
    size = Counter(labels.tolist())
    for a, b in runs(labels <= NONE):
        before = labels[a - 1] if a else -1
        after = labels[b] if b < total else -1
        s = max(before, after)
        if s <= NONE or not (before == after or min(before, after) == -1):
            continue
        if (found.maps[s].images[a:b] < 0).any():
            continue
        unexplained = (labels[a:b] == NONE).all() and b - a <= max(8, 0.03 * size[s])
        gap = before == after and b - a <= size[s] and _fits(found.view, found.maps[s], a, b)
        if unexplained or gap:
            labels[a:b] = s
    return _used(found.view, found.maps, labels)


def _fits(view: View, m: Map, a: int, b: int) -> bool:
    """Return whether rows fit a map about as well as their stored images, all evidence counted."""
    rows = np.arange(a, b)
    images, stored = m.images[a:b], view.table.stored[a:b]
    gain = capped(view.evidence, rows, images) - view.stored[a:b]
    gain = gain * view.evidence.apart(rows, images, stored)
    return float(gain.sum()) / view.table.siblings > -_BACK


def _in_part(found: Explanation) -> Explanation:
    """Leave rows as stored in which an offset holds for some of each n rows only."""
    view, maps, labels = found.view, list(found.maps), found.labels.copy()
    rows, table = np.arange(len(view)), view.table
    each = round(len(view) / len(pieces(table.stored)))
    for a, b in pieces(labels):
        m = maps[labels[a]]
        if m.name[0] not in OFFSETS or b - a < 24:
            continue
        gain = (emission(view, m.images) - view.against)[a:b]
        best = None
        for n in sorted({*range(2, 13), each} - {0, 1}):
            sums = np.bincount(rows[a:b] % n, gain, minlength=n)
            stay = np.flatnonzero(sums < -(math.log(n) + math.log(12) + 4))
            if 0 < len(stay) < n:
                value = -sums[stay].sum() - len(stay) * math.log(n) - (0 if n == each else 2)
                if value > (8 if best is None else best[0] + 1e-6):
                    best = value, n, [r for r in range(n) if r not in stay]
        if best is not None:
            _, n, phase = best
            maps.append(rules.every(table, m, n, phase, m.cost + 2 * math.log(n)))
            names = [x.name for x in maps]
            labels[a:b] = names.index(maps[-1].name)
    return _used(view, maps, labels)


def _simpler(found: Explanation, orders: Orders) -> Explanation:
    """Take one rule instead of several neighbouring pieces, where that costs less."""
    view, maps, labels = found.view, list(found.maps), found.labels.copy()
    place, rows = math.log(len(view)), np.arange(len(view))
    values = {s: emission(view, maps[s].images) for s in np.unique(labels) if s > NONE}
    for a, b in runs(labels > NONE):
        parts = pieces(labels[a:b])
        if not 2 <= len(parts) <= 400:
            continue
        now = -sum(maps[labels[a + x]].cost + place for x, _ in parts)
        now += sum(float(values[labels[a + x]][a + x : a + y].sum()) for x, y in parts)
        best = None
        for m in offers.arrangements(view, orders, a, b):
            first, end = m.name[-2:]
            inside = (rows >= min(a, first)) & (rows < max(b, end))
            outside = inside & ((rows < a) | (rows >= b))
            value = float(emission(view, m.images)[inside].sum()) - m.cost - place
            value -= float(view.against[outside].sum())
            if value > (now if best is None else best[0]):
                best = value, m, first, end
        if best is not None:
            _, m, first, end = best
            values[len(maps)] = emission(view, m.images)  # it may reach into the next pieces
            maps.append(m)
            labels[a:b] = STORED
            labels[first:end] = len(maps) - 1
    return _used(view, maps, labels)


def _plainer(found: Explanation) -> Explanation:
    """Call a rule an offset in rows where both say the same."""
    view, maps = found.view, list(found.maps)
    for s, m in enumerate(maps):
        own = found.labels == s
        if s <= NONE or m.name[0] == "rows on" or not own.any():
            continue
        for other in rules.near(view.table)[: 2 * rules.REACH]:
            if (other.images == m.images)[own].mean() > 0.98 and m.cost > other.cost:
                maps[s] = other
    return Explanation(view, maps, found.labels)
