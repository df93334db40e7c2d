"""Compares golden files with what this code computes, as the tables in `parts` say."""

import functools
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.golden.fidelity import parts
from tests.golden.fidelity.arrays import Arrays


class Comparison(NamedTuple):
    """The errors of one file."""

    errors: dict[str, float]  # largest error by quantity, for quantities that the file has
    tolerance: dict[str, float]  # by quantity
    unread: list[str]  # keys of arrays that were not read

    @property
    def outside(self) -> list[str]:
        """Return the quantities outside their tolerance, NaN included."""
        return [name for name, error in self.errors.items() if not error <= self.tolerance[name]]


def part_of(path: Path) -> parts.Part | None:
    """Return how a file is compared, or None if it is not."""
    return parts.PARTS.get(kind_of(path))


def kind_of(path: Path) -> str:
    """Return the kind of a file, its key in `PARTS`; "" if it has none."""
    return next((kind for kind in parts.PARTS if _is(path, kind)), "")


def compared_files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.glob("*.npz")) if part_of(path)]


def mismatched_files(directory: Path) -> list[str]:
    """Return a sentence for each file that is not compared, and for each kind without a file.

    Pages and directories are left out; what is in a directory has tests of its own.
    """
    paths = sorted(p for p in directory.iterdir() if p.is_file() and p.suffix != ".md")
    unknown = [
        path
        for path in paths
        if path.suffix != ".npz"
        or not any(_is(path, kind) for kind in (*parts.PARTS, *parts.NOT_BUILT))
    ]
    missing = [kind for kind in parts.PARTS if not any(_is(path, kind) for path in paths)]
    return [f"{path}: nothing compares this file" for path in unknown] + [
        f"{directory}: no file {kind}.npz" for kind in missing
    ]


@functools.cache
def compare(path: Path) -> Comparison:
    """Compute all errors of one file; the result is cached."""
    part = part_of(path)
    arrays = Arrays.load(path)
    largest: dict[str, float] = {}
    for quantity, error in part.errors(arrays):
        # np.maximum keeps a NaN, which Python's max may ignore.
        largest[quantity] = float(np.maximum(largest.get(quantity, 0.0), error))
    errors = {quantity: largest.pop(quantity) for quantity in part.tolerance if quantity in largest}
    if largest:
        raise ValueError(f"{path}: no tolerance for {', '.join(largest)}")
    unread = [key for key in arrays.unread if not any(fnmatch(key, k) for k in parts.NOT_COMPARED)]
    return Comparison(errors, part.tolerance, unread)


def _is(path: Path, kind: str) -> bool:
    return fnmatch(path.stem, kind)
