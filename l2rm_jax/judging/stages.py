"""Store finished stages of an audit on disk, so that it can resume after a stop."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax

from l2rm_jax.data.files import open_arrays, replace_arrays

_Tree = TypeVar("_Tree")


class Stages:
    """Results of stages by name, in a directory; without a directory nothing is stored."""

    def __init__(self, directory: Path | None):
        self._directory = directory
        if directory:
            directory.mkdir(parents=True, exist_ok=True)

    def has(self, name: str) -> bool:
        """Return whether the result of a stage is stored."""
        return self._directory is not None and self._file(name).is_file()

    def __call__(self, name: str, like: _Tree, compute: Callable[[], _Tree]) -> _Tree:
        """Return the stored result of a stage, or compute and store it.

        Args:
          name: name of the stage.
          like: a pytree with the structure of the result and any leaves.
          compute: returns the result, a pytree of arrays.

        Raises:
          DataError: the stored result is damaged.
        """
        if not self._directory:
            return compute()
        file = self._file(name)
        if not file.is_file():
            leaves = jax.tree.leaves(compute())
            replace_arrays(file, {str(number): leaf for number, leaf in enumerate(leaves)})
        with open_arrays(file, "a stage of an audit", "remove the file to continue") as arrays:
            leaves = [arrays[str(number)] for number in range(len(arrays))]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.npz"
