"""Damage valid files: functions that know the file formats, by file ending in `MUTATIONS`.

Each is a pure function of a random generator and the bytes of a file.
"""

import argparse
import contextlib
import io
import json
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from l2rm_jax.data.text import Vocabulary

HOSTILE_TEXT = [
    *("\0", "\u202eback", "\U0001f9d1\u200d\U0001f680", "\u2028", "\ufeff", "\r\n", "\n\n", "\t"),
    *("word " * 100_000, "\udc80", "\u0301" * 5000, "(" * 9000, " " * 100_000 + "x", "\x1b[31m"),
    *("'" * 3000, ". " * 4000, "...." * 2000, "\u3000", "None", "nan", "-1", "1e400", "../" * 99),
]
HOSTILE_VALUES = [
    *(None, True, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, float("nan"), float("inf"), 1e308, "", "0"),
    *([], {}, [1], ["a"], {"a": 1}, "\ud800", "\0", "x" * 10_000, [[[]]], {"<unk>": 3}),
]
HOSTILE_HEADERS = [
    *("(" * 5000, "{[]: 1}", "", "{", "'", "{'descr': '<f4'", "[1, 2]", "lambda: 0"),
    *("-" * 9000 + "1", "__import__('os').system('true')"),
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L), }",
    "{'descr': '<f4', 'fortran_order': 2, 'shape': (3, 4), }",
]
HOSTILE_TYPES = [
    *("<f4", ">f4", "<f2", "<f8", "<f16", "|i1", "|u1", "<i2", "<i8", "<u8", ">i4", "|b1", "<c8"),
    *("|O", "<U3", "<U0", "|S0", "|V0", "|V8", "<m8[s]", "<M8[D]", [["a", "<f4"]], ["<f4", [2]]),
    *([("a", "<f4")], ("<f4", (2,)), ("<f4", (10**9,)), "no type", "", None, 7, [], "i8, f4"),
]
HOSTILE_SIZES = [-1, -2, 0, 1, 2, 3, 5, 10**6, 2**31, 2**63, 10**30, 1.0, "3", None, True]


class Danger:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function: Callable, *arguments: object):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def dangers() -> list[object]:
    """Objects that must never be unpickled."""
    return [
        Danger(os.system, "true"),
        Danger(os.mkdir, "executed"),
        Danger(eval, "open('executed', 'w')"),
        Danger(exec, "raise SystemExit"),
        Danger(np.load, "somewhere"),
        Danger(np.ndarray, (10**14,), "b"),
        Danger(np.ndarray, (2, 3), "O"),
        Danger(np.dtype, "O"),
        Danger(bytearray, 10**13),
        Danger(signal.pause),
    ]


def flip(rng: np.random.Generator, data: bytes) -> bytes:
    """Overwrite some bytes, most of them at the front, where headers are."""
    content = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        if content:
            reach = len(content) if rng.random() < 0.5 else min(128, len(content))
            content[rng.integers(reach)] = rng.choice([0, 0xFF, 0x7F, rng.integers(256)])
    return bytes(content)


def cut(rng: np.random.Generator, data: bytes) -> bytes:
    """Remove or repeat a part of the file."""
    first, last = sorted(rng.integers(len(data) + 1, size=2))
    part = data[first:last]
    kept = [data[:first], data[first:], part, data[:first] + data[last:], data + part, b""]
    return kept[rng.integers(len(kept))]


def text(rng: np.random.Generator, data: bytes) -> bytes:
    """Insert hostile text, or bytes that are not UTF-8, at a random place."""
    at = rng.integers(len(data) + 1)
    snippet = HOSTILE_TEXT[rng.integers(len(HOSTILE_TEXT))].encode(errors="surrogateescape")
    return data[:at] + snippet + data[at:]


def lines(rng: np.random.Generator, data: bytes) -> bytes:
    """Repeat, drop and reorder lines, with another line ending."""
    rows = data.split(b"\n")
    rows = [rows[at] for at in rng.integers(len(rows), size=rng.integers(2 * len(rows)))]
    return [b"\n", b"\r\n", b"\r", b"\n\n", b""][rng.integers(5)].join(rows)


def header(rng: np.random.Generator, data: bytes) -> bytes:
    """Replace the header of a `.npy` file, sometimes with as many bytes of data as it promises."""
    start = 10 + int.from_bytes(data[8:10], "little")
    known = eval(data[10:start])
    shape = list(known["shape"])
    for _ in range(rng.integers(0, 3)):
        shape[rng.integers(len(shape))] = HOSTILE_SIZES[rng.integers(len(HOSTILE_SIZES))]
    if rng.random() < 0.3:
        shape = [[], shape * 2, shape[:1], shape[::-1], [1, *shape]][rng.integers(5)]
    known["shape"] = tuple(shape)
    if rng.random() < 0.5:
        known["descr"] = HOSTILE_TYPES[rng.integers(len(HOSTILE_TYPES))]
    known["fortran_order"] = bool(rng.random() < 0.3)
    words = repr(known) if rng.random() < 0.8 else str(rng.choice(HOSTILE_HEADERS))
    body = data[start:]
    with contextlib.suppress(Exception):  # the header may not describe an array at all
        size = int(np.prod(known["shape"])) * np.dtype(known["descr"]).itemsize
        body = np.resize(np.frombuffer(body, np.uint8), min(size, 10**5)).tobytes()
    version = int(rng.choice([1, 1, 1, 2, 3, 9]))
    length = len(words).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + words.encode("latin1", "replace") + body


def numbers(rng: np.random.Generator, data: bytes) -> bytes:
    """Replace some numbers of a `.npy` file."""
    start = 10 + int.from_bytes(data[8:10], "little")
    values = np.frombuffer(data[start:], eval(data[10:start])["descr"]).copy()
    at = rng.integers(len(values), size=rng.integers(1, 4))
    hostile = [np.nan, np.inf, -np.inf, 0, -1, 3e38, 2**62, 127, 10**6]
    with np.errstate(all="ignore"):
        values[at] = np.array(hostile[rng.integers(len(hostile))]).astype(values.dtype)
    return data[:start] + values.tobytes()


def swap(rng: np.random.Generator, tree: Any) -> Any:
    """Copy nested containers with a hostile value, a missing key or another key in one place."""
    if isinstance(tree, dict) and tree and rng.random() < 0.8:
        keys = list(tree)
        key = keys[rng.integers(len(keys))]
        chance = rng.random()
        if chance < 0.15:
            return {name: x for name, x in tree.items() if name != key}
        if chance < 0.3:
            return {("other" if name == key else name): x for name, x in tree.items()}
        return {**tree, key: swap(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        at = rng.integers(len(tree))
        return [*tree[:at], swap(rng, tree[at]), *tree[at + 1 :]]
    return HOSTILE_VALUES[rng.integers(len(HOSTILE_VALUES))]


def json_values(rng: np.random.Generator, data: bytes) -> bytes:
    """Replace a value of a json file, or nest lists too deeply."""
    if rng.random() < 0.05:
        return b"[" * 100_000
    return json.dumps(swap(rng, json.loads(data))).encode()


def tensors(rng: np.random.Generator, data: bytes) -> bytes:
    """Replace a tensor, an option or a whole part of a PyTorch checkpoint."""
    torch = pytest.importorskip("torch")
    content = torch.load(io.BytesIO(data), weights_only=False)
    strange = [
        *(torch.zeros(2, dtype=torch.int64), torch.zeros(3, 4), torch.zeros(()), torch.zeros(0, 5)),
        *(torch.zeros(1).expand(10**13), torch.zeros(1, dtype=torch.half).expand(10**7, 10**6)),
        *(torch.eye(3).to_sparse(), torch.zeros(3, device="meta")),
        *(torch.ones(2, dtype=torch.cfloat), torch.zeros(2).to(torch.bfloat16)),
        torch.nn.Parameter(torch.full((3, 4), torch.nan)),
    ]
    strange += [*HOSTILE_VALUES, *dangers(), Vocabulary({}), argparse.Namespace(sgr_step=[1])]
    place = content["net"] if rng.random() < 0.6 else content
    if rng.random() < 0.2:
        place = vars(content["opt"])
    names = list(place)
    place[names[rng.integers(len(names))]] = strange[rng.integers(len(strange))]
    made = io.BytesIO()
    torch.save(content, made, _use_new_zipfile_serialization=bool(rng.random() < 0.7))
    return made.getvalue()


MUTATIONS = {
    ".npy": (header, header, numbers, flip, cut),
    ".txt": (text, text, lines, flip, cut),
    ".tsv": (text, text, lines, flip, cut),
    ".json": (json_values, json_values, json_values, text, flip, cut),
    ".jsonl": (text, lines, flip, cut),
    ".tar": (tensors, tensors, flip, flip, cut),
}
