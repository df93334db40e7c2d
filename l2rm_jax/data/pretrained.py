"""Read a directory of pretrained weights in the form of Hugging Face, without PyTorch.

It has config.json, tokenizer.json and model.safetensors, or the shards that
model.safetensors.index.json names. Pickled weights are refused. A run keeps a copy in its work
directory, which is read by the same code.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.bases import KINDS, Bases, read_text_base
from l2rm_jax.bases.arrays import (
    Place,
    image_places,
    may_be_left_over,
    our_name,
    place_arrays,
    text_places,
)
from l2rm_jax.data.files import replace_file
from l2rm_jax.data.pieces import TOKENIZER_FILE, Pieces, missing_package
from l2rm_jax.errors import DataError, Problems, first_line, named_errors

CONFIG_FILE, WEIGHT_FILE = "config.json", "model.safetensors"
INDEX_FILE, POOLING_FILE = f"{WEIGHT_FILE}.index.json", "1_Pooling/config.json"
SOURCE_FILE = "source.json"  # written by `keep`
_PICKLES = ("*.bin", "*.ckpt", "*.pt", "*.pth", "*.pkl", "*.h5", "*.msgpack")
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NAMED = 3  # arrays that a message names


@dataclass(frozen=True)
class Pretrained:
    """A directory of pretrained weights.

    Attributes:
      directory: the directory.
      bases: the architectures that the run uses of it.
      pieces: its tokenizer; None without a text base.
    """

    directory: Path
    bases: Bases
    pieces: Pieces | None

    def __str__(self) -> str:
        """Its architecture and size, in a line."""
        sizes = []
        for group, places in _places(self.bases).items():
            base = self.bases.text if group == "text_base" else self.bases.image
            shapes = {place.name: place.shape for place in places}.values()
            numbers = sum(math.prod(shape) for shape in shapes) / 1e6
            stack = base.stack
            sizes.append(
                f"{base.kind}, {stack.layers} layers of {stack.width} numbers, {numbers:.1f} "
                "million parameters"
            )
        return f"{'; '.join(sizes)} ({self.directory})"

    def parameters(self) -> dict[str, Any]:
        """Read the weights as our parameters, by the group `text_base` or `image_base`.

        Raises:
          DataError: a file is missing or damaged, or arrays are missing, unknown, of a wrong shape
            or type, or not finite; lists every problem.
        """
        weights = _Weights(self.directory, _kind(self.bases))
        weights.check(self.bases)
        return {
            group: place_arrays(places, weights.read)
            for group, places in _places(self.bases).items()
        }

    def keep(self, directory: Path) -> None:
        """Copy the files that a run needs to `directory`, unless they are there.

        `source.json` is written last; it names the original and the SHA-256 of each weight file.
        """
        if (directory / SOURCE_FILE).exists():
            return
        for name in (*self._small_files(), *self._weight_names()):
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.directory / name, target)
        source = {"directory": str(self.directory.resolve()), "sha256": self.hashes()}
        replace_file(directory / SOURCE_FILE, json.dumps(source, indent=2).encode())

    def hashes(self) -> dict[str, str]:
        """SHA-256 of each weight file."""
        hashes = {}
        for name in self._weight_names():
            with (self.directory / name).open("rb") as file:
                hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return hashes

    def _small_files(self) -> Iterator[str]:
        for name in (CONFIG_FILE, TOKENIZER_FILE, INDEX_FILE, POOLING_FILE):
            if (self.directory / name).is_file():
                yield name

    def _weight_names(self) -> list[str]:
        return [file.name for file in _weight_files(self.directory)]


def open_pretrained(
    directory: str | Path, text_encoder: str, *, max_words: int, with_weights: bool = True
) -> Pretrained:
    """Open a directory of pretrained weights and check everything but their values.

    Args:
      directory: the directory.
      text_encoder: the `model_type` that it must have.
      max_words: most tokens of a caption, those around it included.
      with_weights: also check the weight files; a trained run has its own weights.

    Raises:
      DataError: lists every fault of the directory.
      ConfigError: `max_words` does not fit the model.
    """
    directory, problems = Path(directory), Problems()
    _check_directory(directory)
    config = problems.attempt(_read_object, directory, CONFIG_FILE)
    base = pieces = None
    if config is not None:
        pooling = problems.attempt(_pooling, directory)
        with_kind = problems.attempt(_check_kind, config, directory / CONFIG_FILE, text_encoder)
        # A fault of the pooling must not hide those of the config.
        base = problems.attempt(_read_base, directory, with_kind, pooling=pooling or "first")
    if base is None:  # the tokenizer cannot be compared with the model, but must be there
        problems.attempt(_check_file, directory, TOKENIZER_FILE)
    elif problems.attempt(_check_file, directory, TOKENIZER_FILE):
        file = directory / TOKENIZER_FILE
        pieces = problems.attempt(Pieces, file, base, max_words=max_words)
    if with_weights:
        weights = problems.attempt(_Weights, directory, text_encoder)
        if weights is not None and base is not None:
            problems.attempt(weights.check, Bases(text=base))
    problems.raise_all()
    return Pretrained(directory, Bases(text=replace(base, ids=pieces.ids())), pieces)


def read_kind(directory: str | Path) -> str:
    """The `model_type` of a directory, one of `bases.KINDS`.

    Raises:
      DataError: there is no such directory or no config.json, or its type is another.
    """
    directory = Path(directory)
    _check_directory(directory)
    kind = _read_object(directory, CONFIG_FILE).get("model_type")
    if kind not in KINDS:
        expected = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise DataError(f"{directory / CONFIG_FILE}: model_type is {kind!r}, expected {expected}")
    return kind


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise DataError(
            f"{directory}: no such directory, expected {CONFIG_FILE}, {TOKENIZER_FILE} and "
            f"{WEIGHT_FILE}"
        )


def _kind(bases: Bases) -> str:
    return (bases.text or bases.image).kind


def _places(bases: Bases) -> dict[str, list[Place]]:
    """The arrays of each base, by the name of its group of parameters."""
    places = {}
    if bases.text:
        places["text_base"] = text_places(bases.text)
    if bases.image:
        places["image_base"] = image_places(bases.image)
    return places


def _check_file(directory: Path, name: str) -> bool:
    """Check that a file is there; the message names those that are."""
    if (directory / name).is_file():
        return True
    found = sorted(path.name for path in directory.iterdir())
    raise DataError(f"{directory}: no {name}; found {', '.join(found) or 'nothing'}")


def _read_object(directory: Path, name: str) -> dict[str, Any]:
    _check_file(directory, name)
    try:
        content = json.loads((directory / name).read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{directory / name}: is not JSON ({first_line(error)})") from error
    if not isinstance(content, dict):
        raise DataError(f"{directory / name}: found a {type(content).__name__}, expected an object")
    return content


def _check_kind(config: Mapping[str, Any], file: Path, text_encoder: str) -> Mapping[str, Any]:
    kind = config.get("model_type")
    if kind != text_encoder:
        raise DataError(
            f"{file}: model_type is {kind!r}, expected {text_encoder!r} as model.text_encoder"
        )
    return config


def _read_base(directory: Path, config: Mapping[str, Any], pooling: str) -> Any:
    with named_errors(str(directory / CONFIG_FILE)):
        return read_text_base(config, pooling)


def _pooling(directory: Path) -> str:
    """How a sentence encoder makes one vector: "mean", or "first" (also of other models)."""
    if not (directory / POOLING_FILE).is_file():
        return "first"
    settings = _read_object(directory, POOLING_FILE)
    modes = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    if len(modes) != 1 or modes[0] not in known:
        raise DataError(
            f"{directory / POOLING_FILE}: pools by {', '.join(modes) or 'nothing'}, expected "
            f"{' or '.join(known)}"
        )
    return known[modes[0]]


def _weight_files(directory: Path) -> list[Path]:
    """The files of the weights: one, or the shards of an index.

    Raises:
      DataError: there are none, or a shard is missing.
    """
    if (directory / WEIGHT_FILE).is_file():
        return [directory / WEIGHT_FILE]
    if (directory / INDEX_FILE).is_file():
        shards = _read_object(directory, INDEX_FILE).get("weight_map")
        names = set(shards.values()) if isinstance(shards, dict) else set()
        if not names or any(Path(str(name)).name != name for name in names):
            raise DataError(
                f"{directory / INDEX_FILE}: no weight_map, expected the name of a file beside it "
                "for each array"
            )
        files = [directory / name for name in sorted(names)]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise DataError(
                *(f"{directory}: no {name}, which {INDEX_FILE} names" for name in missing)
            )
        return files
    pickles = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if pickles:
        convert = "import transformers as t; t.AutoModel.from_pretrained('A').save_pretrained('B')"
        raise DataError(
            f"{directory}: {pickles[0]} holds pickled weights, which are not read; expected "
            f'{WEIGHT_FILE}. Convert them: python -c "{convert}"'
        )
    _check_file(directory, WEIGHT_FILE)
    return []


class _Weights:
    """The arrays of the weight files of a directory, by the names that `bases.arrays` uses.

    Raises:
      DataError: there are no weights, a file is damaged, or safetensors is not installed.
    """

    def __init__(self, directory: Path, kind: str):
        try:
            from safetensors import safe_open
        except ImportError as error:
            raise missing_package("safetensors", error) from error
        self._directory, self._kind, self._open = directory, kind, safe_open
        self._places: dict[str, tuple[Any, str]] = {}  # an open file, and the name in it
        problems = Problems()
        for file in _weight_files(directory):
            problems.attempt(self._add, file)
        problems.raise_all()

    def _add(self, file: Path) -> None:
        try:
            opened = self._open(file, framework="numpy")
        except Exception as error:  # of the library, of any kind
            raise DataError(
                f"{file}: cannot be read ({first_line(error, 200)}), expected a whole file of "
                "safetensors"
            ) from error
        self._places |= {our_name(self._kind, name): (opened, name) for name in opened.keys()}  # noqa: SIM118

    def check(self, bases: Bases) -> None:
        """Check names, shapes and types of the arrays.

        Raises:
          DataError: one message for missing, unknown, misshapen and mistyped arrays each.
        """
        expected = {
            place.name: place.shape for places in _places(bases).values() for place in places
        }
        slices = {
            name: opened.get_slice(own)
            for name, (opened, own) in self._places.items()
            if name in expected
        }
        shapes = {name: tuple(found.get_shape()) for name, found in slices.items()}
        types = {name: found.get_dtype() for name, found in slices.items()}
        unknown = self._places.keys() - expected.keys()
        self._raise_all(
            {
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
        )

    def read(self, name: str) -> np.ndarray:
        """An array in float32.

        Raises:
          DataError: it holds a number that is not finite.
        """
        opened, own = self._places[name]
        array = opened.get_tensor(own).astype(np.float32)
        if not np.isfinite(array).all():
            raise DataError(f"{self._directory}: {name} is not finite, expected finite numbers")
        return array

    def _raise_all(self, faults: Mapping[str, list[str]]) -> None:
        messages = [
            f"{self._directory}: {len(names)} {fault}: {_some(names)}"
            for fault, names in faults.items()
            if names
        ]
        if messages:
            raise DataError(*messages)


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
