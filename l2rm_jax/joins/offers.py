"""Propose maps for a piece of the table: orders, keys, and offsets of every n-th row."""

import math

import numpy as np
from jaxtyping import Float32

from l2rm_jax.joins.emission import View
from l2rm_jax.joins.maps import LATE, OFFSETS, REACH, Map, arranged, same_key
from l2rm_jax.joins.path import pieces

SURE = -math.log(1e-3)  # nats against any finding where nothing happened
_PERIOD = 1000  # longest period
_CLASSES = 16  # most classes of a period that are off
_SAMPLED = 40  # rows that all arrangements of a piece are tried on
_TRIED = 100  # arrangements of a piece, the best of the sample, that are tried on more rows
_CHECKED = 400  # rows that good ones are tried on


def arrangements(view: View, a: int, b: int) -> list[Map]:
    """Return orders of the images of a piece, with ends near a and b, that its captions follow."""
    table, total = view.table, len(view)
    if b - a < 8:
        return []
    edges, reach = _edges(view, a, b)
    low, high = min(x for x, _ in edges), max(x for _, x in edges)
    some = np.unique(np.linspace(*edges[0], min(_SAMPLED, b - a), endpoint=False).astype(int))
    shown = np.unique(table.stored[low:high])
    block, tried = view.evidence.block(some, shown), []
    for first, end in edges:
        rows = some[(some >= first) & (some < end)]
        if not len(rows):
            continue
        offered = list(arranged(table, first, end))
        at = (rows - first - np.array(LATE)[:, None]) % (end - first)
        images = table.stored[first + np.stack([one.order[at] for one in offered])]
        gains = block[np.searchsorted(some, rows), np.searchsorted(shown, images)]
        gains = np.where(images != table.stored[rows], gains - view.stored[rows], 0).mean(axis=2)
        tried += [
            (gains[k, j] * (end - first), first, end, offered[k], LATE[j])
            for k, j in zip(*np.nonzero(gains > 0.5), strict=True)
        ]
    found = []
    for _, first, end, one, rows_late in sorted(tried, key=lambda x: -x[0])[:_TRIED]:
        kind, details, cost, order = one.late(rows_late)
        images = np.full(total, -1)
        images[first:end] = table.stored[first + order]
        rows = np.arange(first, end)[:: max(1, (end - first) // _CHECKED)]
        gain = view.evidence.nats(rows, images[rows]) - view.stored[rows]
        value = float(gain.mean()) * (end - first) / table.siblings - cost
        if value > 15:
            cost += 2 * math.log(2 * reach + 1)
            found.append((value, Map(kind, details, cost, images, (first, end))))
    best: dict[tuple, Map] = {}
    for _, m in sorted(found, key=lambda x: -x[0]):
        best.setdefault(m.name[:2], m)
    return [*best.values()][:3]


def _edges(view: View, a: int, b: int) -> tuple[list[tuple[int, int]], int]:
    """Return likely ends of a piece, the given ones first, and their reach in rows."""
    total, has_siblings = len(view), view.table.siblings > 1.5
    if b - a > 0.97 * total:
        return [(0, total)], 0
    reach = 5 if b - a <= 1000 else 2
    steps = range(-reach, reach + 1)
    edges = {(a + i, b + j) for i in steps for j in steps}
    if has_siblings:  # pieces that begin and end with an image
        begins = np.array([x for x, _ in pieces(view.table.stored)] + [total])
        left, right = (begins[np.argsort(np.abs(begins - x), kind="stable")[:5]] for x in (a, b))
        edges |= {(int(x), int(y)) for x in left for y in right}
    edges = {(x, y) for x, y in edges if x >= 0 and y <= total and y - x >= 8}
    return sorted(edges, key=lambda x: abs(x[0] - a) + abs(x[1] - b)), reach


def colliding(view: View, a: int, b: int) -> list[Map]:
    """Return maps of rows a to b to the last, or the first, image with the same key."""
    table, candidates = view.table, []
    for details, values in same_key(table, a, b):
        images = np.full(len(view), -1)
        images[a:b] = values
        rows = a + np.flatnonzero(values != table.stored[a:b])
        if len(rows):
            some = rows[:: len(rows) // _CHECKED + 1]
            gain = view.evidence.nats(some, images[some]) - view.stored[some]
            gain = gain * view.evidence.apart(some, images[some], table.stored[some])
            candidates.append((float(gain.mean()) * len(rows) / table.siblings, details, images))
    is_whole = (a, b) == (0, len(view))
    cost = math.log(len(candidates) + 1) + (0 if is_whole else 6)
    return [
        Map("same_key", details, cost, images, (a, b))
        for gain, details, images in sorted(candidates, key=lambda x: -x[0])[:2]
        if gain > cost + math.log(len(view)) + SURE
    ]


def periodic(view: View, maps: list[Map], emitted: Float32[np.ndarray, "S P"]) -> list[Map]:
    """Return the best map under which rows r have another offset for some r mod n only."""
    total, best = len(view), None
    longest = min(_PERIOD, total // 4)
    near = [
        (emitted[s] - emitted[0], m)
        for s, m in enumerate(maps)
        if m.kind in OFFSETS and abs(m.details["offset"]) <= REACH
    ]
    for gain, m in sorted(near, key=lambda x: -np.maximum(x[0], 0).sum())[:4]:
        gain = np.append(gain, np.zeros(longest, np.float32))
        for n in range(2, longest + 1):
            sums = gain[: -(-total // n) * n].reshape(-1, n).sum(axis=0)
            classes = np.flatnonzero(sums > math.log(n) + math.log(longest) + SURE)
            if 0 < len(classes) <= min(n - 1, _CLASSES):
                cost = math.log(longest) + len(classes) * math.log(n) + math.log(4 * REACH)
                value = float(sums[classes].sum()) - cost
                if value > (SURE if best is None else best[0] + 1e-6):
                    best = value, m, n, classes.tolist(), cost
    if best is None:
        return []
    _, m, n, phase, cost = best
    images = np.where(np.isin(np.arange(total) % n, phase), m.images, view.table.stored)
    details = {"n": n, "phase": phase, **m.details}
    return [Map("every_nth", details, cost, images, (OFFSETS.index(m.kind),))]
