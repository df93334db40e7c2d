"""Propose maps for a piece of the table: orders, keys, and offsets of every n-th row."""

import math

import numpy as np
from jaxtyping import Float32, Int

from l2rm_jax.joins.emission import LEAST, MOST, View, capped, emission, moved
from l2rm_jax.joins.maps import OFFSETS, REACH, Map, Orders, arranged, every, rows_on, same_key
from l2rm_jax.joins.path import pieces

SURE = -math.log(1e-3)  # nats against any finding where nothing happened
_PERIOD = 1000  # longest period
_CLASSES = 16  # most classes of a period that are off
_SAMPLED = 40  # rows that all arrangements of a piece are tried on
_LATE, _LATE_COST = (0, 1, -1), math.log(8)  # rows that an order is late by too
_CHECKED = 400  # rows that good ones are tried on
_GOOD = 15.0  # nats that a piece gains by an arrangement, at least


def arrangements(view: View, orders: Orders, a: int, b: int) -> list[Map]:
    """Return orders of the images of a piece, with ends near a and b, that its captions follow."""
    table, total = view.table, len(view)
    if b - a < 8:
        return []
    whole = b - a > 0.97 * total
    edges, reach = ([(0, total)], 0) if whole else _edges(view, a, b)
    low, high = min(x for x, _ in edges), max(x for _, x in edges)
    some = np.arange(low, high)
    if is_sampled := len(some) > 2 * _SAMPLED:
        some = np.unique(np.linspace(edges[0][0], edges[0][1] - 1, _SAMPLED).astype(int))
    shown = np.unique(table.stored[low:high])
    place = np.zeros(len(table.images), int)
    place[shown] = np.arange(len(shown))
    block = np.clip(view.evidence.block(some, shown), LEAST, MOST)
    found = []
    for first, end in edges:
        own = np.flatnonzero((some >= first) & (some < end))
        rows = some[own]
        if not len(rows):
            continue
        offered = list(arranged(table, orders, first, end))
        values = np.stack([x for _, _, x in offered])
        at = (rows - first)[None] - np.array(_LATE)[:, None]
        images = values[:, at % (end - first)]
        gains = block[own, place[images]] - view.stored[rows]
        gains = np.where(images != table.stored[rows], gains, 0).mean(axis=2)
        good = gains > 0.5
        if not is_sampled:
            good &= gains * (end - first) / table.siblings > _GOOD
        for k, late in zip(*np.nonzero(good), strict=True):
            name, cost, values = offered[k]
            if _LATE[late]:
                name, cost = (*name, ("late", _LATE[late])), cost + _LATE_COST
                values = np.roll(values, _LATE[late])
            rows = np.arange(first, end)[:: max(1, (end - first) // _CHECKED)]
            gain = capped(view.evidence, rows, values[rows - first]) - view.stored[rows]
            value = gain.mean() * (end - first) / table.siblings - cost
            if value > _GOOD:
                found.append((value, name, cost, first, end, values))
    offers: dict[tuple, Map] = {}
    for _, name, cost, first, end, values in sorted(found, key=lambda x: -x[0]):
        if name not in offers and len(offers) < 3:
            images = np.full(total, -1)
            images[first:end] = values
            cost += 2 * math.log(2 * reach + 1)
            offers[name] = Map(("order", *name, first, end), cost, images)
    return list(offers.values())


def _edges(view: View, a: int, b: int) -> tuple[list[tuple[int, int]], int]:
    """Return likely ends of a piece, the given ones first, and their reach in rows."""
    total, has_siblings = len(view), view.table.siblings > 1.5
    reach = 5 if b - a <= 1000 else 2
    near = 1 if b - a > 1000 and has_siblings else reach
    steps = range(-near, near + 1)
    edges = {(a + i, b + j) for i in steps for j in steps}
    if has_siblings:  # pieces that begin and end with an image
        begins = [x for x, _ in pieces(view.table.stored)] + [total]
        begins = np.array(begins)
        left, right = (begins[np.argsort(np.abs(begins - x), kind="stable")[:9]] for x in (a, b))
        edges |= {(int(x), int(y)) for x in left for y in right}
    edges = {(x, y) for x, y in edges if x >= 0 and y <= total and y - x >= 8}
    return sorted(edges, key=lambda x: abs(x[0] - a) + abs(x[1] - b)), reach


def colliding(view: View, orders: Orders, a: int, b: int) -> list[Map]:
    """Return maps of rows a to b to the last, or the first, image with the same key."""
    table, found = view.table, []
    candidates = list(same_key(table, orders, a, b))
    for name, wins, images in candidates:
        rows = np.flatnonzero(images != table.stored[a:b])
        if not len(rows):
            continue
        some = rows[:: len(rows) // _CHECKED + 1]
        at, image = a + some, images[some]
        gain = moved(view, at, image) - view.stored[at]
        gain = gain * view.evidence.apart(at, image, table.stored[at])
        found.append((gain.mean() * len(rows) / table.siblings, name, wins, images))
    is_whole = (a, b) == (0, len(view))
    cost = math.log(len(candidates) + 1) + (0 if is_whole else 6)
    offers = []
    for gain, name, wins, values in sorted(found, key=lambda x: -x[0])[:2]:
        if gain > cost + math.log(len(view)) + SURE:
            images = np.full(len(view), -1)
            images[a:b] = values
            part = () if is_whole else (a, b)
            offers.append(Map(("same key", name, wins, *part), cost, images))
    return offers


def periodic(
    view: View, maps: list[Map], emitted: Float32[np.ndarray, "S P"], a: int, b: int
) -> list[Map]:
    """Return the best map under which rows r have another offset for some r mod n only."""
    size, best = b - a, None
    longest = min(_PERIOD, size // 4)
    if longest < 2:
        return []
    near = [s for s, m in enumerate(maps) if m.name[0] in OFFSETS and abs(m.name[1]) <= REACH]
    gains = {s: emitted[s, a:b] - emitted[0, a:b] for s in near}
    for s in sorted(near, key=lambda s: -np.maximum(gains[s], 0).sum())[:4]:
        for n in range(2, longest + 1):
            of_class = _class_sums(gains[s], n)
            bound = math.log(n) + math.log(longest) + SURE
            classes = np.flatnonzero(of_class > bound)
            if not 0 < len(classes) <= min(n - 1, _CLASSES):
                continue
            cost = math.log(longest) + len(classes) * math.log(n) + math.log(4 * REACH)
            value = float(of_class[classes].sum()) - cost
            if best is None or value > best[0] + 1e-6:
                best = value, s, n, classes, cost
    if best is None or best[0] <= SURE:
        return []
    _, s, n, classes, cost = best
    return [every(view.table, maps[s], n, sorted(((classes + a) % n).tolist()), cost)]


def _class_sums(gain: np.ndarray, n: int) -> np.ndarray:
    whole = len(gain) // n * n
    sums = gain[:whole].reshape(-1, n).sum(axis=0)
    sums[: len(gain) - whole] += gain[whole:]
    return sums


def finer(
    view: View, maps: list[Map], labels: Int[np.ndarray, " P"], emitted: Float32[np.ndarray, "S P"]
) -> list[Map]:
    """Return offsets that differ from those found by less than an image: windows see the mean."""
    each, offers = view.table.usual, {}
    known = {m.name for m in maps}
    cache: dict[int, np.ndarray] = {}
    for a, b in pieces(labels):
        m = maps[labels[a]]
        if m.name[0] != "rows on" or b - a < 10:
            continue
        for d in range(m.name[1] + 1 - each, m.name[1] + each):
            if d in (0, m.name[1]) or ("rows on", d) in known or d in offers:
                continue
            other = rows_on(view.table, d)
            if d not in cache:
                cache[d] = emission(view, other.images)
            sums = np.cumsum(cache[d][a:b] - emitted[labels[a], a:b])
            if (sums - np.minimum.accumulate(np.append(0, sums[:-1]))).max() > 8:
                offers[d] = other
    return list(offers.values())
