"""Read and write directories of encodings: memory-mapped arrays, and `encodings.json`."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.data.files import new_directory, open_array
from l2rm_jax.errors import DataError, first_line
from l2rm_jax.evaluation.codes import CodedCaptions
from l2rm_jax.models.encoders import ImageCode, TextCode

FILE = "encodings.json"


def write(path: str | Path, header: Mapping[str, Any], parts: Sequence[Any]) -> None:
    """Write encodings to a new directory, which appears when it is complete.

    Args:
      path: the directory.
      header: JSON values.
      parts: the encodings by each network.

    Raises:
      ConfigError: `path` exists already.
    """
    with new_directory(Path(path)) as directory:
        for number, part in enumerate(parts):
            for name, array in _arrays(part):
                np.save(directory / f"{number}-{name}.npy", array)
        # ASCII: a text may hold a lone surrogate, which UTF-8 cannot write.
        (directory / FILE).write_text(json.dumps(header))


def _arrays(part: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a network with their names; names of captions have the padded length."""
    if isinstance(part, np.ndarray):
        yield "vectors", part
    elif isinstance(part, ImageCode):
        yield from _fields(part)
    else:
        for rows, code in part:
            for name, array in (("rows", rows), *_fields(code)):
                yield f"{code.mask.shape[1]}-{name}", array


def _fields(code: ImageCode | TextCode) -> Iterator[tuple[str, np.ndarray]]:
    for field in dataclasses.fields(code):
        value = getattr(code, field.name)
        if isinstance(value, np.ndarray):
            yield field.name, value


def read(path: str | Path) -> tuple[dict[str, Any], list[Any]]:
    """Open a directory of `write`: the header, and the memory-mapped encodings by each network.

    Raises:
      DataError: the directory holds no encodings, or damaged ones.
    """
    path = Path(path)
    try:
        header = json.loads((path / FILE).read_text())
    except FileNotFoundError:
        raise DataError(f"{path}: found no encodings, expected a directory of save()") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path / FILE}: damaged ({first_line(error)})") from error
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for file in sorted(path.glob("*.npy")):
        number, _, name = file.stem.partition("-")
        arrays.setdefault(number, {})[name] = open_array(file)
    try:
        return header, [_part(arrays[str(number)]) for number in range(len(arrays))]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: found a missing array ({first_line(error)})") from error


def _part(arrays: Mapping[str, np.ndarray]) -> Any:
    """Rebuild the encodings by a network from its arrays and their names."""
    if "vectors" in arrays:
        return arrays["vectors"]
    if "regions" in arrays:
        return ImageCode(**arrays)
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        words, _, field = name.partition("-")
        groups.setdefault(words, {})[field] = array
    return [CodedCaptions(group.pop("rows"), TextCode(**group)) for group in groups.values()]
