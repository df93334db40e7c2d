"""The arrays of a golden file, and differences from them."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

# Pairs (quantity, error). A quantity may come several times; its largest error counts.
Errors = Iterator[tuple[str, float]]
# The authors' noise is the difference between their float32 and float64 runs, a single sample, and
# our runs have as much: a difference of this many times the noise is no error.
NOISE_MARGIN = 3


class Arrays(Mapping[str, np.ndarray]):
    """Arrays by the slash-separated keys of tests/golden/ARRAYS.md; records which were read."""

    def __init__(self, arrays: dict, prefix: str = "", read: set[str] | None = None):
        self._arrays, self._prefix = arrays, prefix
        self._read = set() if read is None else read

    @classmethod
    def load(cls, path: Path) -> "Arrays":
        with np.load(path, allow_pickle=False) as file:
            return cls(dict(file))

    def __getitem__(self, key: str) -> np.ndarray:
        value = self._arrays[self._prefix + key]
        self._read.add(self._prefix + key)
        return value

    def __iter__(self) -> Iterator[str]:
        start = len(self._prefix)
        return (key[start:] for key in self._arrays if key.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return f"{self._prefix}{key}" in self._arrays

    def under(self, prefix: str) -> "Arrays":
        """Return the arrays whose key starts with `prefix`, by the rest of the key."""
        return Arrays(self._arrays, self._prefix + prefix, self._read)

    def cases(self, last: str) -> list[str]:
        """Return the keys that end in `/last`, without that end."""
        return [key.removesuffix(f"/{last}") for key in self if key.endswith(f"/{last}")]

    def numbers(self, *keys: str) -> Iterator[float]:
        return (float(self[key]) for key in keys)

    @property
    def unread(self) -> list[str]:
        return sorted(set(self) - self._read)


def difference(ours, theirs, *, relative: bool = False) -> float:
    """Return the largest absolute difference, if `relative` divided by the largest of theirs.

    Raises:
      ValueError: the shapes differ; NumPy might broadcast them.
    """
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"found shape {ours.shape}, expected {theirs.shape} as in the golden file")
    error = np.abs(ours - theirs).max(initial=0.0)
    return float(error / np.abs(theirs).max()) if relative else float(error)


def both_precisions(ours, arrays: Mapping, key: str, *, relative: bool = False) -> float:
    """Return the larger of the differences from their float32 and their float64 array."""
    keys = [name for name in (key, f"{key}_f64") if name in arrays]
    return largest(difference(ours, arrays[name], relative=relative) for name in keys)


def more_wrong(called_clean, is_clean, accuracy) -> int:
    """Return how many pairs more we call wrongly than a fit of this accuracy does.

    A count, as a share of few pairs says little, and its rounding may cross a bound.
    """
    right = np.asarray(called_clean, bool) == np.asarray(is_clean, bool)
    return round(float(accuracy) * len(right)) - int(right.sum())


def tree_difference(ours, theirs) -> float:
    return largest(jax.tree.leaves(jax.tree.map(difference, ours, theirs)))


def largest(errors: Iterable[float]) -> float:
    """Return the maximum, or NaN if any error is NaN; Python's `max` may ignore a NaN."""
    return float(np.max(list(errors)))
