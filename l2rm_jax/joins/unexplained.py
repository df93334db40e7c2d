"""Name rows that no map explains: shuffled, sorted alone, or unrelated."""

import math

import numpy as np
from jaxtyping import Float

from l2rm_jax.joins.blind import shuffled_within
from l2rm_jax.joins.emission import View
from l2rm_jax.joins.findings import Named, is_sorted
from l2rm_jax.joins.offers import SURE
from l2rm_jax.joins.path import pieces
from l2rm_jax.joins.search import NONE, Explanation
from l2rm_jax.joins.table import Table

_SHORTEST = 8  # rows of a finding without a repair
_SAMPLED = 300
_SIZES = (8, 16, 32, 40, 64, 80, 100, 128, 160, 256, 320, 512, 640, 1024)


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
        return [Named("sorted_alone", rows)]
    size = shuffled_within(table)
    return [Named("shuffled_within", rows, {"size": size})] if size else []


def _name(view: View, a: int, b: int) -> Named:
    rows, texts = np.arange(a, b), view.table.texts
    if texts is not None and b - a >= 12 and is_sorted(texts[a:b]):
        return Named("sorted_alone", rows)
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
    e = np.clip(view.evidence.ratio_block(some, images), 0.01, 400)
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
