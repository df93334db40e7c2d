"""Read ids as a join may have read them: as orders of the images, and as keys that collide."""

import random
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import Any

import numpy as np
from jaxtyping import Int

SEEDS = (0, 1, 2, 3, 42, 123, 1234, 1337, 2023, 2024)
_KEPT = 5_000  # largest size whose permutations are kept
_PARTS = 6  # most tokens of an id that are read as keys and orders
_CUT = 24  # most characters that an id is cut to
_NUMBER, _SEPARATOR = re.compile(r"\d+"), re.compile(r"[^0-9A-Za-z]+")


def numbers_of(ids: Sequence[str]) -> list[int] | None:
    """Return the number of each id that varies most; None if an id has no number."""
    columns = _columns([_NUMBER.findall(x) for x in ids])
    numbers = [[int(x) for x in column] for column in columns]
    return max(numbers, key=lambda column: len(set(column)), default=None)


def orders_of(ids: Sequence[str]) -> dict[str, Int[np.ndarray, " I"]]:
    """Return the images in each order that their ids suggest, without orders that repeat."""
    numbers = numbers_of(ids)
    keys: dict[str, Sequence] = {
        "as text": ids,
        "as text, ignoring case": [(x.casefold(), x) for x in ids],
        "by number": numbers or [],
        "by length and text": [(len(x), x) for x in ids],
        "by file name without folder": [x.rsplit("/", 1)[-1] for x in ids],
        "from the end of the text": [x[::-1] for x in ids],
    }
    for k, part in enumerate(_parts(ids)):
        keys[f"by part {k + 1} as text"] = part
        if all(x.isdecimal() for x in part):
            keys[f"by part {k + 1} as a number"] = [*map(int, part)]
    found: dict[bytes, tuple[str, np.ndarray]] = {}
    for name, key in keys.items():
        if len(key):
            order = np.array(sorted(range(len(ids)), key=key.__getitem__))
            found.setdefault(order.tobytes(), (name, order))
    return dict(found.values())


def set_order(numbers: Sequence[int]) -> Int[np.ndarray, " I"]:
    """Return the places of different numbers in the order in which a Python set holds them."""
    place = {number: k for k, number in enumerate(numbers)}
    return np.array([place[number] for number in set(list(place))])


def kept_if_small(function: Callable) -> Callable:
    """Keep the last results of a function of a size, if it is small."""
    cached = lru_cache(maxsize=64)(function)

    @wraps(function)
    def kept(size: int, *settings: int) -> Any:
        return (cached if size <= _KEPT else function)(size, *settings)

    return kept


@kept_if_small
def shuffles(size: int) -> list[tuple[str, Int[np.ndarray, " size"]]]:
    """Return permutations by usual generators with usual seeds, and the names of these calls."""
    found = []
    for seed in SEEDS:
        for name in ("RandomState", "default_rng"):
            order = getattr(np.random, name)(seed).permutation(size)
            found.append((f"numpy.random.{name}({seed})", order))
        mixed = list(range(size))
        random.Random(seed).shuffle(mixed)
        found.append((f"random.Random({seed})", np.array(mixed)))
    return found


def collisions(ids: Sequence[str]) -> dict[str, Int[np.ndarray, " I"]]:
    """Return numbers of keys that several images share, by ways to reduce an id."""
    found: dict[bytes, tuple[str, np.ndarray]] = {}
    for name, code in _reduced(ids):
        if 0 < code.max() < len(ids) - 1:
            found.setdefault(code.tobytes(), (name, code))
    return dict(found.values())


def matches(keys: Sequence[str], ids: Sequence[str]) -> dict[str, Int[np.ndarray, " P"]]:
    """Return the image of each key by readings of both; -1 where no image or several match."""
    readings = {
        "as they are": str,
        "without ending": _stem,
        "without folder": lambda x: x.rsplit("/", 1)[-1],
        "by the first part": lambda x: _SEPARATOR.split(x)[0],
        "by number": lambda x: tuple(map(int, _NUMBER.findall(x)[:1])),
    }
    found: dict[bytes, tuple[str, np.ndarray]] = {}
    for name, read in readings.items():
        values: dict[Hashable, int] = {}
        for image, text in enumerate(ids):
            values[read(text)] = -1 if read(text) in values else image
        images = np.array([values.get(read(key), -1) for key in keys])
        if (images >= 0).mean() > 0.5:
            found.setdefault(images.tobytes(), (name, images))
    return dict(found.values())


def _reduced(ids: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    numbers, stems = numbers_of(ids), [*map(_stem, ids)]
    yield "ignoring case", _codes([x.casefold() for x in ids])
    yield "without folder", _codes([x.rsplit("/", 1)[-1] for x in ids])
    yield "without ending", _codes(stems)
    yield "up to the first dot", _codes([x.split(".", 1)[0] for x in ids])
    yield "by folder", _codes([x.rsplit("/", 1)[0] for x in ids])
    if numbers:
        yield "as a number", _codes(numbers)
        yield "as a number in float32", _codes(np.array(numbers, float).astype(np.float32).tolist())
    yield "by letters and digits", _codes([_SEPARATOR.sub("", x) for x in ids])
    yield "by letters", _codes([re.sub(r"[^A-Za-z]", "", x) for x in ids])
    for k, part in enumerate(_parts(ids)):
        yield f"by part {k + 1}", _codes(part)
    for size, code in _cut(ids):
        yield f"by the first {size} characters", code
    for size, code in _cut([x[::-1] for x in stems]):
        yield f"by the last {size} characters before the ending", code


def _cut(ids: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Return numbers of the ids cut to 1, 2, ... characters, from one sorted list."""
    order = np.argsort(np.array(ids), kind="stable")
    width = min(max(map(len, ids)), _CUT)
    letters = np.array([ids[k][:width].ljust(width, "\0") for k in order])
    letters = letters.astype(f"U{width}").view(np.uint32).reshape(len(ids), -1)
    if letters.shape[1] < width:
        return
    common = np.cumprod(letters[1:] == letters[:-1], axis=1).sum(axis=1)
    for size in range(1, width):
        code = np.empty(len(ids), int)
        code[order] = np.concatenate([[0], np.cumsum(common < size)])
        yield size, code


def _parts(ids: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the first tokens between separators of all ids, without those that never vary."""
    parts = _columns([_SEPARATOR.split(x.strip("/")) for x in ids])
    return [part for part in parts[:_PARTS] if len(set(part)) > 1] if len(parts) > 1 else []


def _columns(rows: list[list[str]]) -> list[tuple[str, ...]]:
    width = min(map(len, rows), default=0)
    return list(zip(*(row[:width] for row in rows), strict=True))


def _codes(values: Sequence[Hashable]) -> Int[np.ndarray, " I"]:
    code: dict[Hashable, int] = {}
    return np.array([code.setdefault(value, len(code)) for value in values])


def _stem(name: str) -> str:
    return name.rsplit(".", 1)[0]
