"""Maps: rules that give an image for each caption, and the nats that it takes to name one.

A map is a hypothesis on a join that went wrong. What happened to a table is a sequence of maps
along its rows. A family of n maps costs log n nats for each of its maps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from l2rm_jax.joins import keys
from l2rm_jax.joins.table import Table

REACH = 5  # offsets that are always tried, in rows and in images
TURNS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32)
OFFSETS = ("rows on", "images on")
LATE = (0, 1, -1)  # rows that an order may be late by too


@dataclass(frozen=True, eq=False)
class Map:
    """A rule.

    Attributes:
      kind: kind of a finding that the rule makes, or one of `OFFSETS`.
      details: parameters of the rule, as the finding has them.
      cost: nats to name it.
      images: image of each row, -1 for none.
      place: further parameters that no sentence says.
    """

    kind: str
    details: dict[str, Any]
    cost: float
    images: Int[np.ndarray, " P"]
    place: tuple[int, ...] = ()

    @property
    def name(self) -> tuple:
        """Kind and parameters; maps with equal names are equal."""
        return self.kind, str(self.details), self.place


def rows_on(table: Table, d: int) -> Map:
    """Return the map from row r to the image of row r + d."""
    cost = math.log(8) if abs(d) == 1 else math.log(4 * (REACH if abs(d) <= REACH else len(table)))
    return Map("rows on", {"offset": d}, cost, taken(table.stored, np.arange(len(table)) + d))


def images_on(table: Table, d: int) -> Map:
    """Return the map to the image d places further in the list of images."""
    images = taken(np.arange(len(table.images)), table.stored + d)
    return Map("images on", {"offset": d}, math.log(8 * REACH), images)


def backwards(table: Table, start: int) -> Map:
    """Return the map from row r to the image of row start - r."""
    images = taken(table.stored, start - np.arange(len(table)))
    return Map("reversed", {}, math.log(4 * len(table)) + 1, images, (start,))


def near(table: Table) -> list[Map]:
    """Return the maps to the next rows and images, also of the first or last captions only."""
    offsets = [d for k in range(1, REACH + 1) for d in (k, -k)]
    found = [rows_on(table, d) for d in offsets]
    if len(table.images) == len(table):
        return found
    begins = np.flatnonzero(np.diff(table.stored, prepend=-1))
    number = np.arange(len(table)) - np.repeat(begins, np.diff(begins, append=len(table)))
    found += [images_on(table, d) for d in offsets]
    for d, base in ((1, images_on(table, 1)), (-1, images_on(table, -1))):
        for k in range(1, table.usual):  # other captions than these two: an offset in rows
            chosen = number < k if d == 1 else number >= k
            captions = range(1, k + 1) if d == 1 else range(k + 1, table.usual + 1)
            images = np.where(chosen, base.images, table.stored)
            details = {"captions": [*captions], "offset": d}
            cost = math.log(4 * table.usual)
            found.append(Map("by_caption_number", details, cost, images))
    return found


def by_ids(table: Table) -> list[Map]:
    """Return the maps to images by their numbers, and by the user's keys of captions."""
    found = [
        Map("keys_disagree", {"key": name}, math.log(8), images)
        for name, images in table.keyed.items()
    ]
    if table.numbers is not None:
        place = {number: image for image, number in enumerate(table.numbers)}
        for d in (-2, -1, 1, 2):
            image = np.array([place.get(number + d, -1) for number in table.numbers])
            found.append(Map("off_by_number", {"offset": d}, math.log(32), image[table.stored]))
    return found


def same_key(table: Table, a: int, b: int) -> Iterator[tuple[dict, Int[np.ndarray, " n"]]]:
    """Yield details and images of rows a to b: all images with the same key give way to one."""
    shown, place = np.unique(table.stored[a:b], return_inverse=True)
    if len(shown) < 8:
        return
    for name, of_all in table.collisions.items():
        code = np.unique(of_all[shown], return_inverse=True)[1].ravel()
        if not 0 < code.max() < len(shown) - 1:
            continue
        for wins in ("last", "first"):
            holder = np.zeros(code.max() + 1, int)
            order = np.arange(len(code))[:: 1 if wins == "last" else -1]
            holder[code[order]] = order
            yield {"key": name, "wins": wins}, shown[holder[code[place]]]


class Arrangement(NamedTuple):
    """An order of the rows of a piece: caption k has the image of row order[k] of the piece."""

    kind: str
    details: dict[str, Any]
    cost: float
    order: Int[np.ndarray, " n"]

    def late(self, rows: int) -> "Arrangement":
        """Return the order whose captions are late by some rows of `LATE`, and wrap around."""
        if not rows:
            return self
        details, order = self.details | {"late": rows}, np.roll(self.order, rows)
        return Arrangement(self.kind, details, self.cost + math.log(8), order)


def arranged(table: Table, a: int, b: int) -> Iterator[Arrangement]:
    """Yield the orders of rows a to b in which their captions may stand."""
    slots = table.stored[a:b]
    shown, first, place = np.unique(slots, return_index=True, return_inverse=True)
    for name, rank in table.ranks.items():
        order = np.argsort(rank[slots], kind="stable")
        for descending in (False, True):
            details = {"key": name, "descending": descending}
            order = order[::-1] if descending else order
            yield Arrangement("sorted_by_id", details, 3.5 if descending else 3.0, order)
    if table.numbers is not None:
        held = keys.set_order([table.numbers[i] for i in shown[np.argsort(first)]])
        rank = inverse(np.argsort(first)[held])[place]
        details = {"key": "as a Python set holds their numbers"}
        yield Arrangement("set_order", details, 3.0, np.argsort(rank, kind="stable"))
    for name, length in table.lengths.items():
        for key, values in ((name, length), (f"{name}, longest first", -length)):
            order = np.argsort(values[a:b], kind="stable")
            yield Arrangement("sorted_by_text_length", {"key": key}, 3.5, order)
    for name, order in keys.shuffles(b - a):
        yield Arrangement("seeded_shuffle", {"by": name}, 4.5, order)
    for one in _regular(b - a):
        is_major = one.kind == "dealt" and one.details["lists"] == table.usual > 1
        yield one._replace(kind="caption_major", details={}) if is_major else one
    if len(shown) < b - a:
        appeared = inverse(np.argsort(first))[place]
        for kind, details, cost, order in _regular(len(shown)):
            order = np.argsort(inverse(order)[appeared], kind="stable")
            yield Arrangement(kind, details | {"of": "images"}, cost, order)


@lru_cache(maxsize=64)
def _regular(size: int) -> list[Arrangement]:
    """Return orders that follow from the number of rows, or of images."""
    rows = np.arange(size)
    found = [Arrangement("reversed", {}, 2.0, rows[::-1])]
    if size % 2 == 0:
        found.append(Arrangement("neighbours", {}, 3.0, rows ^ 1))
    for n in TURNS:
        if 2 * n <= size:
            order = np.argsort(rows % n, kind="stable")
            found.append(Arrangement("dealt", {"lists": n}, 4.0, order))
            found.append(Arrangement("interleaved", {"lists": n}, 4.0, inverse(order)))
    return found


def grouped(table: Table) -> list[Map]:
    """Return the arrangements that hold within every group of rows."""
    if table.groups is None:
        return []
    bounds = [0, *(np.flatnonzero(np.diff(table.groups)) + 1).tolist(), len(table)]
    if not 3 <= len(bounds) <= len(table) / 4:
        return []
    found: dict[tuple, Map] = {}
    for a, b in pairwise(bounds):
        rows = np.arange(b - a)
        rolled = [
            Arrangement("rolled", {"edge": edge}, 0, np.roll(rows, shift))
            for edge, shift in (("start", 1), ("end", -1))
        ]
        for kind, details, _, order in [*arranged(table, a, b), *rolled]:
            name = kind, str(details)
            if name not in found:
                details = details | {"groups": len(bounds) - 1}
                found[name] = Map(kind, details, 6.0, table.stored.copy())
            found[name].images[a:b] = table.stored[a + order]
    return [*found.values()]


def taken(values: Int[np.ndarray, " n"], at: Int[np.ndarray, " P"]) -> Int[np.ndarray, " P"]:
    """Return values at these places; -1 for places outside."""
    there = (at >= 0) & (at < len(values))
    return np.where(there, values[np.where(there, at, 0)], -1)


def inverse(order: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the inverse permutation."""
    result = np.empty_like(order)
    result[order] = np.arange(len(order))
    return result
