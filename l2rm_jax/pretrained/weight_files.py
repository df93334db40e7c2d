"""Read the files of pretrained weights in Hugging Face's format, without PyTorch."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from l2rm_jax.errors import DataError, Problems, first_line
from l2rm_jax.jobs.regular_files import JSON, has_file, read_regular
from l2rm_jax.pretrained.arrays import group_places, may_be_left_over, our_name
from l2rm_jax.pretrained.specs import Bases

WEIGHT_FILE = "model.safetensors"
INDEX_FILE = f"{WEIGHT_FILE}.index.json"
_PICKLES = ("*.bin", "*.ckpt", "*.pt", "*.pth", "*.pkl", "*.h5", "*.msgpack")
_DTYPES = ("F32", "F16", "BF16")  # float32, float16 and bfloat16 in a file
_NAMED = 3  # number of arrays that a message names


def check_file(directory: Path, name: str) -> bool:
    """Check that a file exists; the message lists the existing files."""
    if has_file(directory / name):
        return True
    found = sorted(path.name for path in directory.iterdir())
    raise DataError(f"{directory}: found {', '.join(found) or 'no files'}, expected {name}")


def read_object(directory: Path, name: str) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
      DataError: it is missing or damaged, or holds something else.
    """
    check_file(directory, name)
    try:
        content = json.loads(read_regular(directory / name, JSON))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{directory / name}: cannot be read ({first_line(error)}), expected JSON"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{directory / name}: found a {type(content).__name__}, expected an object")
    return content


def weight_files(directory: Path) -> list[Path]:
    """List the weight files: a single file, or the shards of an index.

    Raises:
      DataError: there are no weights, or a shard is missing.
    """
    if has_file(directory / WEIGHT_FILE):
        return [directory / WEIGHT_FILE]
    if has_file(directory / INDEX_FILE):
        shards = read_object(directory, INDEX_FILE).get("weight_map")
        names = set(shards.values()) if isinstance(shards, dict) else set()
        if not names or any(Path(str(name)).name != name for name in names):
            raise DataError(
                f"{directory / INDEX_FILE}: found no weight_map, expected the name of a file in "
                "the same directory for each array"
            )
        files = [directory / name for name in sorted(names)]
        missing = [file.name for file in files if not has_file(file)]
        if missing:
            raise DataError(
                *(f"{directory}: found no {name}, which {INDEX_FILE} lists" for name in missing)
            )
        return files
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        convert = "import transformers as t; t.AutoModel.from_pretrained('A').save_pretrained('B')"
        raise DataError(
            f"{directory}: found pickled weights ({pickles[0]}), expected {WEIGHT_FILE}. "
            f'Convert them: python -c "{convert}"'
        )
    check_file(directory, WEIGHT_FILE)
    return []


class Weights:
    """The arrays of the weight files of a directory, by the names that `arrays` uses.

    Raises:
      DataError: there are no weights, a file is damaged, or safetensors is not installed.
    """

    def __init__(self, directory: Path, kind: str):
        self._directory, self._kind = directory, kind
        self._open = needed_module("safetensors").safe_open
        self._places: dict[str, tuple[Any, str]] = {}  # an open file, and the name in it
        problems = Problems()
        for file in weight_files(directory):
            problems.attempt(self._add, file)
        problems.raise_all()

    def _add(self, file: Path) -> None:
        try:
            opened = self._open(file, framework="numpy")
        except Exception as error:  # of the library, of any kind
            raise DataError(
                f"{file}: cannot be read ({first_line(error, 200)}), expected a complete "
                "safetensors file"
            ) from error
        self._places |= {our_name(self._kind, name): (opened, name) for name in opened.keys()}  # noqa: SIM118

    def check(self, bases: Bases) -> None:
        """Check names, shapes and types of the arrays.

        Raises:
          DataError: one message for missing, unknown, misshapen and mistyped arrays each.
        """
        expected = {
            place.name: place.shape for places in group_places(bases).values() for place in places
        }
        slices = {
            name: opened.get_slice(own)
            for name, (opened, own) in self._places.items()
            if name in expected
        }
        shapes = {name: tuple(found.get_shape()) for name, found in slices.items()}
        types = {name: found.get_dtype() for name, found in slices.items()}
        unknown = self._places.keys() - expected.keys()
        faults = {
            "arrays are missing": sorted(expected.keys() - self._places.keys()),
            "arrays are unknown": sorted(
                name for name in unknown if not may_be_left_over(bases, name)
            ),
            "arrays have a wrong shape": [
                f"{name} {list(shape)}, expected {list(expected[name])}"
                for name, shape in shapes.items()
                if shape != expected[name]
            ],
            "arrays are not float32, float16 or bfloat16": [
                f"{name} {kind}" for name, kind in types.items() if kind not in _DTYPES
            ],
        }
        messages = [
            f"{self._directory}: {len(names)} {fault}: {_some(names)}"
            for fault, names in faults.items()
            if names
        ]
        if messages:
            raise DataError(*messages)

    def read(self, name: str) -> np.ndarray:
        """Read an array in float32.

        Raises:
          DataError: a value is not finite.
        """
        opened, own = self._places[name]
        array = opened.get_tensor(own).astype(np.float32)
        if not np.isfinite(array).all():
            raise DataError(
                f"{self._directory}: found non-finite values in {name}, expected finite numbers"
            )
        return array

    def read_number(self, name: str) -> np.ndarray | None:
        """Read an array of one number, as float32 `[]`; None if it does not exist.

        Raises:
          DataError: it holds several numbers, or its number is not finite.
        """
        if name not in self._places:
            return None
        array = self.read(name)
        if array.size != 1:
            raise DataError(
                f"{self._directory}: found {name} {list(array.shape)}, expected one number"
            )
        return array.reshape(())


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def needed_module(name: str) -> ModuleType:
    """Import a module of a package that pretrained models need.

    Raises:
      DataError: it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"model.pretrained: {name.partition('.')[0]} cannot be imported: {error}",
            hint='pip install "l2rm_jax[pretrained]"',
        ) from error
