"""The arrays of a golden file, and the errors of this code beside them."""

import copy
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

GOLDEN = Path(os.environ.get("L2RM_GOLDEN") or Path(__file__).parents[1])
# The authors' noise is the difference between their float32 and float64 runs, a single sample, and
# our runs have as much: a difference of this many times the noise is no error.
NOISE_MARGIN = 3


class Arrays(Mapping[str, np.ndarray]):
    """Arrays of a golden file by their slash-separated keys.

    Attributes:
      unread: keys of arrays that were not read.
      errors: largest error of each quantity that was compared.
    """

    def __init__(self, arrays: dict):
        self.errors: dict[str, float] = {}
        self._arrays, self._prefix, self._read = arrays, "", set()

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
        part = copy.copy(self)  # shares the record of errors and of read arrays
        part._prefix = self._prefix + prefix
        return part

    def cases(self, last: str) -> list[str]:
        """Return the keys that end in `/last`, without that end."""
        return [key.removesuffix(f"/{last}") for key in self if key.endswith(f"/{last}")]

    def numbers(self, *keys: str) -> Iterator[float]:
        return (float(self[key]) for key in keys)

    @property
    def unread(self) -> list[str]:
        return sorted(set(self) - self._read)

    def add(self, quantity: str, error: float) -> None:
        """Record an error of a quantity. The largest counts, at least 0, or NaN if any is NaN."""
        self.errors[quantity] = float(np.maximum(self.errors.get(quantity, 0.0), error))

    def check(self, quantity: str, ours, theirs, *, relative: bool | None = None) -> None:
        """Record the difference from an array.

        Args:
          quantity: name in the table of tolerances.
          ours: array that this library computed.
          theirs: array, or key of one, whose float64 version (`KEY_f64`) is compared too.
          relative: divide by the largest of theirs. By default, if the quantity says so.
        """
        if relative is None:
            relative = quantity.endswith(("relative", "/ largest"))
        stored = [theirs]
        if isinstance(theirs, str):
            stored = [self[theirs]]
            if f"{theirs}_f64" in self:
                stored.append(self[f"{theirs}_f64"])
        self.add(quantity, largest(difference(ours, each, relative=relative) for each in stored))

    def check_losses(self, values: Mapping[str, tuple], gradient: str = "grad_f64") -> None:
        """Compare (loss, gradient of its sum) by name of the loss, in a file or part of it."""
        for name, (loss, of_sims) in values.items():
            self.check("losses, relative", loss, name)
            self.check("gradients / largest", of_sims, f"{name}_{gradient}")


def difference(ours, theirs, *, relative: bool = False) -> float:
    """Return the largest absolute difference; if `relative`, over the largest of theirs but 0.

    Raises:
      ValueError: the shapes differ; NumPy might broadcast them.
    """
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if ours.shape != theirs.shape:
        raise ValueError(f"found shape {ours.shape}, expected {theirs.shape} as in the golden file")
    error = np.abs(ours - theirs).max(initial=0.0)
    return float(error / (np.abs(theirs).max() or 1.0)) if relative else float(error)


def tree_difference(ours, theirs, *, relative: bool = False) -> float:
    """Return the largest difference of all arrays; if `relative`, over the largest of theirs."""
    error = largest(jax.tree.leaves(jax.tree.map(difference, ours, theirs)))
    return error / largest_entry(theirs) if relative else error


def largest_entry(tree) -> float:
    return largest(np.abs(x).max() for x in jax.tree.leaves(tree))


def largest(errors: Iterable[float]) -> float:
    """Return the maximum, or NaN if any error is NaN; Python's `max` may ignore a NaN."""
    return float(np.max(list(errors)))


def more_wrong(called_clean, is_clean, accuracy) -> int:
    """Return how many more pairs we call wrongly than a fit of this accuracy does.

    A count, as a share of few pairs says little, and its rounding may cross a bound.
    """
    right = np.asarray(called_clean, bool) == np.asarray(is_clean, bool)
    return round(float(accuracy) * len(right)) - int(right.sum())
