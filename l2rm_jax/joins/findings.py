"""Name an explanation: one finding per rule, or per group of pieces with one cause."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int

from l2rm_jax.joins import maps as rules
from l2rm_jax.joins.path import pieces
from l2rm_jax.joins.search import NONE, STORED, Explanation
from l2rm_jax.joins.table import Table

UNREPAIRED = ("shuffled_within", "shuffled", "sorted_alone", "unrelated")
Piece = tuple[int, int, int]  # first row, end, offset in rows
_FEW = 0.1  # rows of other offsets, relative to the longest piece, with a cause of their own
_NEAR = 12  # largest step of a drift, and gap between its pieces, in rows


@dataclass(frozen=True, eq=False)
class Named:
    """A kind of misalignment, before it is tested.

    Attributes:
      kind: its name.
      rows: the rows that it explains, or that nothing explains.
      details: what its sentence says.
    """

    kind: str
    rows: Int[np.ndarray, " n"]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """First row."""
        return int(self.rows[0])

    @property
    def end(self) -> int:
        """Row after the last one."""
        return int(self.rows[-1]) + 1


def name_rules(table: Table, found: Explanation) -> list[Named]:
    """Name the maps of an explanation, in the order of the table."""
    each, moved, by_rule = _each(table), [], {}
    for a, b in pieces(found.labels):
        name = found.maps[found.labels[a]].name
        if found.labels[a] <= NONE:
            continue
        if name[0] == "rows on":
            moved.append((a, b, name[1]))
        elif name[0] == "images on" and each:
            moved.append((a, b, name[1] * each))
        else:
            by_rule.setdefault(name[:2] if name[0] == "line" else name, []).append((a, b))
    named = [_rule(name, _rows(parts), each) for name, parts in by_rule.items()]
    if moved:
        parts = _merged(moved)
        main = max(parts, key=lambda part: part[1] - part[0])
        others = [part for part in parts if part[2] != main[2]]
        if sum(b - a for a, b, _ in others) < _FEW * (main[1] - main[0]):  # two causes
            parts = [part for part in parts if part[2] == main[2]]
            named += [_moved([part], found.labels) for part in others]
        named.append(_moved(parts, found.labels))
    return sorted(named, key=lambda x: x.first)


def _each(table: Table) -> int:
    """Return the number of captions per image; 0 if it varies."""
    counts = np.bincount(table.stored)
    return table.usual if (counts[counts > 0] == table.usual).mean() > 0.9 else 0


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


def _rule(name: tuple, rows: np.ndarray, each: int) -> Named:
    """Name a map that is no plain offset."""
    kind = name[0]
    if kind == "line":
        kind = "order"
        name = (kind, "rows reversed") if name[1] == -1 else (kind, "dealt", name[1])
    if kind == "in turn":
        kind, name = "order", ("order", "interleaved", name[1])
    in_groups = {"groups": name[1]} if kind == "groups" else {}
    if kind in ("order", "groups"):
        name = name[1:] if kind == "order" else name[2:]
        late = dict(x for x in name if isinstance(x, tuple))
        found, details = _order(name, each)
        return Named(found, rows, details | late | in_groups)
    if kind == "same key":
        return Named("same_key", rows, {"key": name[1], "wins": name[2]})
    if kind == "number":
        return Named("off_by_number", rows, {"offset": name[1]})
    if kind == "keys":
        return Named("keys_disagree", rows, {"key": name[1]})
    if kind == "every":
        n, phase, unit, d = name[1:5]
        if n == each and unit == "rows on" and len(phase) > 1:
            details = {"captions": [r + 1 for r in phase], "offset": d}
            return Named("by_caption_number", rows, details)
        return Named("every_nth", rows, {"n": n, "phase": list(phase), "offset": d})
    return Named("captions_per_image", rows, {"count": name[1]})


def _order(name: tuple, each: int) -> tuple[str, dict[str, Any]]:
    kind, key = name[0], name[1] if len(name) > 1 else None
    if kind in ("ids", "ids reversed"):
        if key == rules.SET_ORDER:
            return "set_order", {"key": key}
        return "sorted_by_id", {"key": key, "descending": kind == "ids reversed"}
    if kind == "dealt":
        return ("caption_major", {}) if key == each > 1 else ("dealt", {"lists": key})
    known = {
        "texts": ("sorted_by_text_length", {"key": key}),
        "shuffled": ("seeded_shuffle", {"by": key}),
        "rows reversed": ("reversed", {}),
        "images reversed": ("reversed", {}),
        "neighbours": ("neighbours", {}),
        "interleaved": ("interleaved", {"lists": key}),
        "rolled": ("rolled", {"edge": key}),
    }
    return known[kind]


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


def name_both(first: Sequence[Piece], further: Sequence[Piece], total: int) -> Named:
    """Name the offsets that two searches found one after the other in the same rows.

    Args:
      first: pieces (first row, end, offset) as stored.
      further: pieces of the table in which the first ones are put back.
      total: number of rows.
    """
    once, again = (np.zeros(total, int) for _ in range(2))
    for offsets, parts in ((once, first), (again, further)):
        for a, b, d in parts:
            offsets[a:b] = d
    both = again + once[np.clip(np.arange(total) + again, 0, total - 1)]
    parts = [(a, b, int(both[a])) for a, b in pieces(both) if both[a]]
    # Where pieces of the two searches end a few rows apart, fragments are left.
    parts = _merged([(a, b, d) for a, b, d in parts if b - a > _NEAR] or parts)
    return _moved(parts, np.where(both == 0, STORED, NONE))


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
