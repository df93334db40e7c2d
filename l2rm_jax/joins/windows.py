"""Propose offsets: compare windows of rows with all images, where rows fit badly."""

import math

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.joins.emission import View
from l2rm_jax.joins.maps import Map, backwards, rows_on
from l2rm_jax.joins.path import WIDTH, runs, two_states

_LONG, _SHORT = (32, 64), (12, 32)  # independent rows of a window, and most windows
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
            e = view.evidence.block(np.arange(start, start + width))[:, table.stored]
            e = e / np.float32(table.siblings)
            best = [(v, rows_on(table, at - start)) for at, v in diagonals(e, bound)]
            best += [
                (v, backwards(table, at + start + width - 1)) for at, v in diagonals(e[::-1], bound)
            ]
            hits += bool(best)
            found += [m for _, m in sorted(best, key=lambda x: -x[0])[:2]]
        if hits > 0.7 * len(starts) or b - a <= width:
            break
    return found


def diagonals(e: Float32[np.ndarray, "n m"], bound: float) -> list[tuple[int, float]]:
    """Return places p, and sums of e[i, p + i], of the two largest sums above a bound."""
    width, length = e.shape
    sums = np.zeros(length + width - 1, np.float32)
    for i in range(width):
        sums[width - 1 - i :][:length] += e[i]
    found = []
    for _ in range(2):
        k = int(sums.argmax())
        if sums[k] <= bound:
            break
        found.append((k - width + 1, float(sums[k])))
        sums[max(0, k - 3) : k + 4] = -np.inf
    return found
