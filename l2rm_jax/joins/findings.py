"""Name an explanation: one finding per rule, or per group of pieces with one cause."""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.joins.blind import shuffled_within
from l2rm_jax.joins.emission import View
from l2rm_jax.joins.evidence import SAFE
from l2rm_jax.joins.offers import SURE
from l2rm_jax.joins.path import pieces
from l2rm_jax.joins.search import NONE, STORED, Explanation
from l2rm_jax.joins.table import Table

UNREPAIRED = ("shuffled_within", "shuffled", "sorted_alone", "unrelated")
Piece = tuple[int, int, int]  # first row, end, offset in rows
_FEW = 0.1  # rows of other offsets, relative to the longest piece, with a cause of their own
_NEAR = 12  # largest step of a drift, and gap between its pieces, in rows
_SHORTEST = 8  # rows of a finding without a repair
_SAMPLED = 300
_SIZES = (8, 16, 32, 40, 64, 80, 100, 128, 160, 256, 320, 512, 640, 1024)


class Named(NamedTuple):
    """A kind of misalignment, before it is tested.

    Attributes:
      kind: its name.
      rows: the rows that it explains, or that nothing explains.
      details: what its sentence says.
    """

    kind: str
    rows: Int[np.ndarray, " n"]
    details: dict[str, Any]


def name_rules(table: Table, found: Explanation) -> list[Named]:
    """Name the maps of an explanation, in the order of the table."""
    moved, by_rule = [], {}
    for a, b in pieces(found.labels):
        m = found.maps[found.labels[a]]
        if m.kind == "rows on":
            moved.append((a, b, m.details["offset"]))
        elif m.kind == "images on":
            moved.append((a, b, m.details["offset"] * table.usual))
        elif found.labels[a] > NONE:
            name = m.name if m.kind != "reversed" else (m.kind,)  # at any place
            by_rule.setdefault(name, (m, []))[1].append((a, b))
    named = [Named(m.kind, _rows(parts), m.details) for m, parts in by_rule.values()]
    if moved:
        parts = _merged(moved)
        main = max(parts, key=lambda part: part[1] - part[0])
        others = [part for part in parts if part[2] != main[2]]
        if sum(b - a for a, b, _ in others) < _FEW * (main[1] - main[0]):  # two causes
            parts = [part for part in parts if part[2] == main[2]]
            named += [_moved([part], found.labels) for part in others]
        named.append(_moved(parts, found.labels))
    return sorted(named, key=lambda x: x.rows[0])


def _rows(parts: Iterable[tuple[int, int]]) -> Int[np.ndarray, " n"]:
    return np.concatenate([np.arange(a, b) for a, b in parts])


def _merged(moved: list[Piece]) -> list[Piece]:
    """Join pieces of one offset with at most three rows between them."""
    result: list[Piece] = []
    for a, b, d in sorted(moved):
        if result and result[-1][2] == d and a - result[-1][1] <= 3:
            result[-1] = result[-1][0], b, d
        else:
            result.append((a, b, d))
    return result


def _moved(parts: list[Piece], labels: np.ndarray) -> Named:
    """Name pieces whose captions belong to rows some way on."""
    rows, offsets = _rows((a, b) for a, b, _ in parts), [d for *_, d in parts]
    details: dict[str, Any] = {"pieces": parts, "offset": offsets[0]}
    if len(parts) == 1:
        a, b, d = parts[0]
        target = labels[max(0, a + d) : max(0, b + d)]
        is_far = abs(d) >= b - a and abs(d) > 9
        if is_far and len(target) and (target == STORED).mean() > 0.7:
            return Named("repeated", rows, details)
        return Named("shifted", rows, details)
    if len(set(offsets)) == 1:
        return Named("pieces_shifted", rows, details)
    steps = np.diff(offsets)
    gaps = np.array([y[0] - x[1] for x, y in pairwise(parts)])
    one_way = (np.sign(steps) == np.sign(np.median(steps))).mean() > 0.75
    if (gaps <= _NEAR).mean() > 0.7 and one_way and np.median(np.abs(steps)) <= _NEAR:
        return Named("drifting", rows, details)
    period = -offsets[0]
    if period > 9 and all(abs(d + (k + 1) * period) <= 2 for k, d in enumerate(offsets)):
        return Named("modulo", rows, details | {"period": period})
    if len(parts) == 2 and _is_exchange(parts, len(labels)):
        return Named("swapped_blocks", rows, details)
    if max(map(abs, offsets)) <= _NEAR:
        return Named("pieces_shifted", rows, details)
    return Named("reordered_blocks", rows, details | {"size": _block_size(parts)})


def _is_exchange(parts: list[Piece], total: int) -> bool:
    """Return whether the pieces have the images of each other, once each."""
    count, inside = np.zeros(total, int), np.zeros(total, bool)
    for a, b, d in parts:
        inside[a:b] = True
        count[max(0, a + d) : max(0, min(total, b + d))] += 1
    return (count[inside] == 1).mean() > 0.85 and count[~inside].sum() < 0.15 * inside.sum()


def _block_size(parts: list[Piece]) -> int:
    """Return the size that the pieces are multiples of; 0 if there is none."""
    steps = np.diff(np.unique([x for a, b, _ in parts for x in (a, b)]))
    for size in sorted({int(s) for s in steps if s > 4}):
        off = steps % size
        if len(steps) > 1 and (np.minimum(off, size - off) <= 2).mean() > 0.85:
            return size
    return 0


def is_sorted(texts: list[str]) -> bool:
    """Return whether texts stand in alphabetical order, with few exceptions."""
    return bool(np.mean([x <= y for x, y in pairwise(texts)]) > 0.97)


def name_unexplained(found: Explanation) -> list[Named]:
    """Name the pieces that nothing explains and no chance makes."""
    named, total = [], len(found.labels)
    moved = sum(b - a for a, b in pieces(found.labels) if found.labels[a] > NONE)
    for a, b in pieces(found.labels):
        lost = -float(found.view.against[a:b].sum())
        if found.labels[a] != NONE or b - a < _SHORTEST or lost < math.log(total) + SURE:
            continue
        one = _name(found.view, a, b)
        beside = found.labels[max(0, a - 1)] > NONE or found.labels[min(total - 1, b)] > NONE
        if not (one.kind == "unrelated" and beside and b - a < 0.2 * moved):
            named.append(one)
    return named


def name_all_wrong(table: Table) -> list[Named]:
    """Name a table in which no join was found under which anything fits."""
    rows = np.arange(len(table))
    if table.texts is not None and is_sorted(table.texts):
        return [Named("sorted_alone", rows, {})]
    size = shuffled_within(table)
    return [Named("shuffled_within", rows, {"size": size})] if size else []


def _name(view: View, a: int, b: int) -> Named:
    rows, texts = np.arange(a, b), view.table.texts
    if texts is not None and b - a >= 12 and is_sorted(texts[a:b]):
        return Named("sorted_alone", rows, {})
    share, size = _among(view, a, b)
    if size:
        return Named("shuffled_within", rows, {"size": size})
    return Named("shuffled" if share > 0.5 else "unrelated", rows, {"share": share})


def _among(view: View, a: int, b: int) -> tuple[float, int]:
    """Return the share of captions whose image is in the piece, and the size of their batches."""
    table, rows = view.table, np.arange(a, b)
    rng = np.random.default_rng(0)
    some = rows if len(rows) <= _SAMPLED else np.sort(rng.choice(rows, _SAMPLED, replace=False))
    images, first = np.unique(table.stored[rows], return_index=True)
    if len(images) < 4:
        return 0.0, 0
    e = np.exp(view.evidence.block(some, images) / SAFE)
    e[np.arange(len(some)), np.searchsorted(images, table.stored[some])] = 0
    mean = e.sum(axis=1) / (len(images) - 1)
    base, best = np.log(0.1 + 0.9 * mean), (math.log(1e3) + len(some) * 0.05, 0)
    at = rows[first]
    for size in _SIZES:
        if size >= (b - a) * 0.7:
            break
        for phase in {a, 0}:
            same = (at - phase) // size == (some[:, None] - phase) // size
            within = (e * same).sum(axis=1) / np.maximum(same.sum(axis=1) - 1, 1)
            gain = float((np.log(0.1 + 0.9 * within) - base).sum()) / table.siblings
            if gain > best[0] + 1:
                best = gain, size
    return _share(mean), best[1]


def _share(ratio: Float[np.ndarray, " n"]) -> float:
    """Return the most likely share of rows that belong here, by expectation maximisation."""
    share = 0.5
    for _ in range(100):
        there = share * ratio / (1 - share + share * ratio)
        share = float(np.clip(there.mean(), 1e-4, 1 - 1e-4))
    return share
