"""Arrays of a golden file, and how far ours are from them."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

# (quantity, error): a part yields a quantity as often as it likes; the largest error counts.
Errors = Iterator[tuple[str, float]]


class Arrays(Mapping[str, np.ndarray]):
    """Arrays by the slash-separated keys of golden/README.md; remembers which ones were read."""

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
        """The arrays whose key starts with `prefix`, by the rest of their key."""
        return Arrays(self._arrays, self._prefix + prefix, self._read)

    def cases(self, last: str) -> list[str]:
        """What precedes `/last` in the keys that end so."""
        return [key.removesuffix(f"/{last}") for key in self if key.endswith(f"/{last}")]

    def numbers(self, *keys: str) -> Iterator[float]:
        return (float(self[key]) for key in keys)

    @property
    def unread(self) -> list[str]:
        return sorted(set(self) - self._read)


def difference(ours, theirs, *, relative: bool = False) -> float:
    """Largest absolute difference; `relative` to their largest entry.

    Raises:
      ValueError: the shapes differ, which NumPy might hide by broadcasting.
    """
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"ours has shape {ours.shape}, theirs {theirs.shape}")
    error = np.abs(ours - theirs).max(initial=0.0)
    return float(error / np.abs(theirs).max()) if relative else float(error)


def both_precisions(ours, arrays: Mapping, key: str, *, relative: bool = False) -> float:
    """Difference from their float32 array `key`, or from its float64 twin if that is larger."""
    keys = [name for name in (key, f"{key}_f64") if name in arrays]
    return largest(difference(ours, arrays[name], relative=relative) for name in keys)


def tree_difference(ours, theirs) -> float:
    return largest(jax.tree.leaves(jax.tree.map(difference, ours, theirs)))


def largest(errors: Iterable[float]) -> float:
    """The maximum; NaN if any is, where Python's `max` would lose it."""
    return float(np.max(list(errors)))
