"""Propose offsets: compare windows of rows with all images, where rows fit badly."""

import math

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.joins.emission import View, capped_block
from l2rm_jax.joins.maps import (
    SLOPES,
    TURNS,
    Map,
    Orders,
    in_list,
    line,
    rows_on,
    taken,
)
from l2rm_jax.joins.path import WIDTH, runs, two_states

_LONG, _SHORT = (32, 64), (12, 32)  # independent rows of a window, and most windows
_SLOPED = 24  # rows of a window that is compared along slopes
_CHANGE = 5.0  # nats for each end of a region
_MOST = 30  # regions


def regions(
    view: View,
    emitted: Float32[np.ndarray, " P"],
    labels: Int[np.ndarray, " P"],
    settled: int,
) -> list[tuple[int, int]]:
    """Return pieces in which more rows fit badly than elsewhere, the longest first.

    Args:
      view: the rows.
      emitted: evidence of each row for the map that holds there.
      labels: map of each row; 0: as stored, 1: none.
      settled: number of maps after these two that are known from earlier turns.
    """
    own = np.where((labels < 2) | (labels >= 2 + settled), view.against, emitted)
    bad = (np.where(labels < 2, own, emitted) <= 0) | (labels == 1)
    shares = np.array([x.mean() for x in np.array_split(bad, max(1, len(view) // WIDTH))])
    usual = min(0.6, float(np.quantile(shares, 0.25)) + 0.05)
    inside = min(0.95, max(0.45, usual + 0.3))
    gain = np.where(bad, math.log(inside / usual), math.log((1 - inside) / (1 - usual)))
    found = []
    for a, b in runs(two_states(gain, _CHANGE)):
        if b - a < 6:
            continue
        reach = min(24, (b - a) // 2)
        left, right = max(0, a - 24), min(len(view), b + 24)
        # Ends such that the rows between speak most against the join there.
        after, before = np.cumsum(-own[b - reach : right]), np.cumsum(-own[left : a + reach][::-1])
        found.append((a + reach - 1 - int(before.argmax()), b - reach + 1 + int(after.argmax())))
    return sorted(found, key=lambda x: x[0] - x[1])[:_MOST]


def offsets(view: View, a: int, b: int) -> list[Map]:
    """Return offsets, forwards and backwards, that the rows of a window agree on."""
    table, found = view.table, []
    for independent, most in (_LONG, _SHORT):
        width = min(round(independent * table.siblings), b - a)
        count = min(most, max(1, 2 * (b - a) // width - 1))
        starts = np.unique(np.linspace(a, b - width, count).astype(int))
        bound, hits = math.log(4 * len(view) * len(starts)) + 3, 0
        for start in starts.tolist():
            e = capped_block(view, np.arange(start, start + width))[:, table.stored]
            best = [(v, at, s) for s in (1, -1) for at, v in diagonals(e, s, bound)]
            hits += bool(best)
            for _, at, slope in sorted(best, reverse=True)[:2]:
                forwards = slope == 1
                found.append(
                    rows_on(table, at - start) if forwards else line(table, -1, at + start)
                )
        if hits > 0.7 * len(starts) or b - a <= width:
            break
    return found


def slopes(view: View, orders: Orders, a: int, b: int) -> list[Map]:
    """Return lines to every second, third, ... row, and orders of the ids at any offset."""
    table = view.table
    width = min(_SLOPED, b - a)
    count = min(6, max(1, (b - a) // width))
    starts = np.unique(np.linspace(a, b - width, count).astype(int))
    copies = np.bincount(table.stored, minlength=len(table.images))
    lists = {name: np.argsort(rank) for name, rank in orders.ranks.items()}
    lists = {name: np.repeat(order, copies[order]) for name, order in lists.items()}
    bound = math.log(2 * len(view) * (len(SLOPES) + 12) * len(starts)) + 3
    found = []
    for start in starts.tolist():
        block = capped_block(view, np.arange(start, start + width))
        e = block[:, table.stored]
        for slope in SLOPES:
            best = diagonals(e, slope, bound, 1)
            found += [line(table, slope, at - slope * start) for at, _ in best]
        for name, order in lists.items():
            best = diagonals(block[:, order], 1, bound, 1)
            found += [in_list(table, ("ids", name), order, at - start) for at, _ in best]
    return found


def in_turn(view: View, a: int, b: int) -> list[Map]:
    """Return the best map of lists that were read in turn: every n-th row advances by one row."""
    table, best = view.table, None
    for n in TURNS:
        width = min(_SLOPED, (b - a) // n)
        if width < 6:
            continue
        middle = (a + b - width * n) // 2
        places, value = [], -n * math.log(len(view)) - math.log(len(TURNS))
        for c in range(n):
            rows = middle + c + n * np.arange(width)
            [(at, v)] = diagonals(capped_block(view, rows)[:, table.stored], 1, -np.inf, 1)
            places.append((int(rows[0]), at))
            value += v
        if value > 15 and (best is None or value > best[0]):
            best = value, n, places
    if best is None:
        return []
    _, n, places = best
    images = np.full(len(view), -1)
    starts = [0] * n
    for row, at in places:
        own = np.arange(row % n, len(view), n)
        images[own] = taken(table.stored, at + (own - row) // n)
        starts[row % n] = at - row // n
    cost = math.log(4 * len(view)) + (n - 1) * math.log(64) + math.log(len(TURNS))
    return [Map(("in turn", n, tuple(starts)), cost, images)]


def diagonals(
    e: Float32[np.ndarray, "n m"], slope: int, bound: float, most: int = 2
) -> list[tuple[int, float]]:
    """Return places p, and sums of e[i, p + slope i], of the largest sums above a bound."""
    width, length = e.shape
    flipped = slope < 0
    if flipped:
        e, slope = e[:, ::-1], -slope
    reach = slope * (width - 1)
    sums = np.zeros(length + reach, np.float32)
    for i in range(width):
        start = reach - slope * i
        sums[start : start + length] += e[i]
    found = []
    for _ in range(most):
        k = int(sums.argmax())
        if sums[k] <= bound:
            break
        found.append((length - 1 - k + reach if flipped else k - reach, float(sums[k])))
        sums[max(0, k - 3) : k + 4] = -np.inf
    return found
