"""Maps: rules that give an image for each caption, and the nats that it takes to name one.

A map is a hypothesis on a join that went wrong. What happened to a table is a sequence of maps
along its rows. A family of n maps costs log n nats for each of its maps.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from jaxtyping import Int

from l2rm_jax.joins import keys
from l2rm_jax.joins.table import Table

REACH = 5  # offsets that are always tried, in rows and in images
SLOPES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32)
TURNS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32)
_LEAST_DEALT = 8  # entries of a list; many groups may have fewer each
SET_ORDER = "as a Python set holds their numbers"
OFFSETS = ("rows on", "images on")


@dataclass(frozen=True, eq=False)
class Map:
    """A rule. `name`: its kind and parameters; `cost`: nats to name it; `images`: -1 for none."""

    name: tuple
    cost: float
    images: Int[np.ndarray, " P"]


@dataclass(frozen=True, eq=False)
class Orders:
    """Orders of all images by their ids, and lengths of all captions.

    Attributes:
      ranks: place of each image in each order.
      numbers: a number of each image, all different; None without such numbers.
      lengths: characters and words of each caption.
      collisions: numbers of keys that several images share.
    """

    ranks: dict[str, Int[np.ndarray, " I"]] = field(default_factory=dict)
    numbers: list[int] | None = None
    lengths: dict[str, Int[np.ndarray, " P"]] = field(default_factory=dict)
    collisions: dict[str, Int[np.ndarray, " I"]] = field(default_factory=dict)


def read_orders(table: Table) -> Orders:
    """Read the ids and texts of a table as orders."""
    ranks, numbers, lengths, collisions = {}, None, {}, {}
    if table.ids is not None:
        ranks = {name: inverse(order) for name, order in keys.orders_of(table.ids).items()}
        collisions = keys.collisions(table.ids)
        numbers = keys.numbers_of(table.ids)
        numbers = numbers if numbers and len(set(numbers)) == len(numbers) else None
    if table.texts is not None:
        lengths["by length"] = np.array([len(x) for x in table.texts])
        lengths["by number of words"] = np.array([len(x.split()) for x in table.texts])
    return Orders(ranks, numbers, lengths, collisions)


def stored(table: Table) -> Map:
    """Return the join as it is stored."""
    return Map(("stored",), 0.0, table.stored)


def none(table: Table) -> Map:
    """Return the map under which captions fit no image of the table."""
    return Map(("none",), 0.0, np.full(len(table), -1))


def rows_on(table: Table, d: int) -> Map:
    """Return the map from row r to the image of row r + d."""
    cost = math.log(8) if abs(d) == 1 else math.log(4 * (REACH if abs(d) <= REACH else len(table)))
    return Map(("rows on", d), cost, taken(table.stored, np.arange(len(table)) + d))


def images_on(table: Table, d: int) -> Map:
    """Return the map to the image d places further in the list of images."""
    images = table.stored + d
    there = (images >= 0) & (images < len(table.images))
    return Map(("images on", d), math.log(8 * REACH), np.where(there, images, -1))


def line(table: Table, slope: int, start: int) -> Map:
    """Return the map from row r to the image of row start + slope r."""
    cost = math.log(4 * len(table)) + (1 if slope == -1 else math.log(2 * len(SLOPES)))
    images = taken(table.stored, start + slope * np.arange(len(table)))
    return Map(("line", slope, start), cost, images)


def in_list(table: Table, name: tuple, order: Int[np.ndarray, " n"], d: int) -> Map:
    """Return the map from row r to entry r + d of a list of images."""
    images = taken(order, np.arange(len(table)) + d)
    return Map(("order", *name, 0, len(table), d), math.log(24 * len(table)), images)


def near(table: Table) -> list[Map]:
    """Return the maps to the next rows and the next images."""
    offsets = [d for k in range(1, REACH + 1) for d in (k, -k)]
    found = [rows_on(table, d) for d in offsets]
    if len(table.images) != len(table):
        found += [images_on(table, d) for d in offsets]
    return found


def by_number(table: Table, orders: Orders) -> list[Map]:
    """Return the maps to images whose number is 1 or 2 higher or lower."""
    if orders.numbers is None:
        return []
    place = {number: image for image, number in enumerate(orders.numbers)}
    found = []
    for d in (-2, -1, 1, 2):
        image = np.array([place.get(number + d, -1) for number in orders.numbers])
        found.append(Map(("number", d), math.log(32), image[table.stored]))
    return found


def by_keys(table: Table) -> list[Map]:
    """Return the maps from the user's keys of captions to the ids of images."""
    if table.keys is None or table.ids is None:
        return []
    found = keys.matches(table.keys, table.ids)
    return [Map(("keys", name), math.log(8), images) for name, images in found.items()]


def same_key(
    table: Table, orders: Orders, a: int, b: int
) -> Iterator[tuple[str, str, Int[np.ndarray, " n"]]]:
    """Yield key, winner and images of rows a to b: each key has one image."""
    slots = table.stored[a:b]
    shown, place = np.unique(slots, return_inverse=True)
    if len(shown) < 8:
        return
    for name, of_all in orders.collisions.items():
        code = np.unique(of_all[shown], return_inverse=True)[1].ravel()
        if not 0 < code.max() < len(shown) - 1:
            continue
        for wins in ("last", "first"):
            holder = np.zeros(code.max() + 1, int)
            order = np.arange(len(code))[:: 1 if wins == "last" else -1]
            holder[code[order]] = order
            yield name, wins, shown[holder[code[place]]]


def every(table: Table, base: Map, n: int, phase: list[int], cost: float) -> Map:
    """Return a map that holds for rows r with r mod n in `phase` only."""
    chosen = np.isin(np.arange(len(table)) % n, phase)
    images = np.where(chosen, base.images, table.stored)
    return Map(("every", n, tuple(phase), *base.name), cost, images)


Arrangement = tuple[tuple, float, Int[np.ndarray, " n"]]  # name, cost, images


def arranged(
    table: Table, orders: Orders, a: int, b: int, least: int = _LEAST_DEALT
) -> Iterator[Arrangement]:
    """Yield orders of the images of rows a to b that captions may stand in.

    Args:
      table: the rows.
      orders: readings of its ids and texts.
      a: first row.
      b: row after the last one.
      least: fewest entries of a list that images were dealt to; shuffles have four times as many.
    """
    slots = table.stored[a:b]
    values, first, times = np.unique(slots, return_index=True, return_counts=True)
    shown, repeats = values[np.argsort(first)], times[np.argsort(first)]
    copies = np.zeros(len(table.images), int)
    copies[shown] = repeats
    seen = {shown.tobytes()}
    lists = [(name, shown[np.argsort(rank[shown])]) for name, rank in orders.ranks.items()]
    if orders.numbers is not None:
        lists.append((SET_ORDER, shown[keys.set_order([orders.numbers[i] for i in shown])]))
    for name, order in lists:
        if order.tobytes() not in seen:
            seen.add(order.tobytes())
            yield ("ids", name), 3.0, np.repeat(order, copies[order])
            backwards = order[::-1]
            yield ("ids reversed", name), 3.5, np.repeat(backwards, copies[backwards])
    for name, length in orders.lengths.items():
        yield ("texts", name), 3.5, slots[np.argsort(length[a:b], kind="stable")]
        order = np.argsort(-length[a:b], kind="stable")
        yield ("texts", f"{name}, longest first"), 3.5, slots[order]
    for name, order in keys.shuffles(b - a) if b - a >= 4 * least else ():
        yield ("shuffled", name), 4.5, slots[order]
    yield ("rows reversed",), 2.0, slots[::-1]
    for name, cost, order in _in_turn(b - a, least):
        yield (*name, "rows"), cost, slots[order]
    if len(shown) < b - a:
        for name, cost, order in _in_turn(len(shown), least):
            yield (*name, "images"), cost, np.repeat(shown[order], repeats[order])
        yield ("images reversed",), 2.0, np.repeat(shown[::-1], repeats[::-1])


@keys.kept_if_small
def _in_turn(size: int, least: int) -> list[Arrangement]:
    """Return places that are exchanged with their neighbours, or were dealt to lists."""
    found: list[Arrangement] = []
    if size % 2 == 0:
        found.append((("neighbours",), 3.0, np.arange(size) ^ 1))
    for n in TURNS:
        if least * n <= size:
            order = dealt(np.arange(size), n)
            found.append((("dealt", n), 4.0, order))
            found.append((("interleaved", n), 4.0, inverse(order)))
    return found


def grouped(table: Table, orders: Orders) -> list[Map]:
    """Return the arrangements that hold within every group of rows."""
    if table.groups is None:
        return []
    found: dict[tuple, np.ndarray] = {}
    ends = np.flatnonzero(np.diff(table.groups)) + 1
    bounds = [0, *ends.tolist(), len(table)]
    if len(bounds) < 3 or len(bounds) > len(table) / 4:
        return []
    for a, b in pairwise(bounds):
        for name, _, images in arranged(table, orders, a, b, least=2):
            whole = found.setdefault(name, np.full(len(table), -1))
            whole[a:b] = images
        for name, order in (("start", -1), ("end", 1)):  # a row too many at one end of each group
            whole = found.setdefault(("rolled", name), np.full(len(table), -1))
            whole[a:b] = np.roll(table.stored[a:b], -order)
    return [
        Map(("groups", len(bounds) - 1, *name), 6.0, np.where(images < 0, table.stored, images))
        for name, images in found.items()
    ]


def taken(values: Int[np.ndarray, " n"], at: Int[np.ndarray, " P"]) -> Int[np.ndarray, " P"]:
    """Return values at these places; -1 for places outside."""
    there = (at >= 0) & (at < len(values))
    return np.where(there, values[np.where(there, at, 0)], -1)


def inverse(order: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the inverse permutation."""
    result = np.empty_like(order)
    result[order] = np.arange(len(order))
    return result


def dealt(values: Int[np.ndarray, " n"], lists: int) -> Int[np.ndarray, " n"]:
    """Return every n-th value, from the first one, then from the second one, and so on."""
    return np.concatenate([values[k::lists] for k in range(lists)])
