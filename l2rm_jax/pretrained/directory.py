"""Read pretrained weights, a directory in the form of Hugging Face, without PyTorch.

It has config.json and model.safetensors, or the shards that model.safetensors.index.json names;
for captions tokenizer.json, for pictures preprocessor_config.json. Pickled weights are rejected.
The name of a model on the Hub refers to its directory there. A run keeps a copy in its work
directory, which the same code reads.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.errors import DataError, Problems, named_errors, nearest_flag
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.regular_files import has_file
from l2rm_jax.pretrained.arrays import group_places, place_arrays
from l2rm_jax.pretrained.hub import find_directory
from l2rm_jax.pretrained.preparation import read_preparation
from l2rm_jax.pretrained.specs import Bases, read_image_base, read_model_type, read_text_base
from l2rm_jax.pretrained.tokenizer import TOKENIZER_FILE, Pieces
from l2rm_jax.pretrained.weight_files import (
    INDEX_FILE,
    WEIGHT_FILE,
    Weights,
    check_file,
    read_object,
    weight_files,
)

CONFIG_FILE, POOLING_FILE = "config.json", "1_Pooling/config.json"
PREPARATION_FILE = "preprocessor_config.json"
_PROCESSOR_FILE = "processor_config.json"  # newer versions write it, with the other one in it
SOURCE_FILE = "source.json"  # written by `keep`
# Files of a directory, in addition to its weights, that a run or a saved model keeps.
SMALL_FILES = (CONFIG_FILE, TOKENIZER_FILE, POOLING_FILE, PREPARATION_FILE, _PROCESSOR_FILE)
_LOSS = {"log_scale": "logit_scale", "bias": "logit_bias"}  # numbers of a loss, in weight files
_HUB_FILES = (*SMALL_FILES, INDEX_FILE, WEIGHT_FILE, "model-*.safetensors")  # all that are fetched


@dataclass(frozen=True)
class Pretrained:
    """A directory of pretrained weights.

    Attributes:
      directory: the directory.
      bases: the architectures in it that the run uses.
      pieces: its tokenizer; None without a text base.
    """

    directory: Path
    bases: Bases
    pieces: Pieces | None

    def __str__(self) -> str:
        """Describe its architectures and sizes in a line."""
        sizes = []
        for group, places in group_places(self.bases).items():
            base = self.bases.text if group == "text_base" else self.bases.image
            shapes = {place.name: place.shape for place in places}.values()
            numbers = sum(math.prod(shape) for shape in shapes) / 1e6
            side = "captions" if group == "text_base" else f"pictures of {base.image_size} pixels"
            sizes.append(
                f"{base.kind} for {side}, {base.stack.layers} layers of {base.stack.width} "
                f"numbers, {numbers:.1f} million parameters"
            )
        return f"{'; '.join(sizes)} ({self.directory})"

    def parameters(self) -> dict[str, Any]:
        """Read the weights as our parameters, by the group `text_base` or `image_base`.

        Raises:
          DataError: a file is missing or damaged, or arrays are missing, unknown, of a wrong shape
            or type, or not finite; lists every problem.
        """
        weights = Weights(self.directory, _kind(self.bases))
        weights.check(self.bases)
        return {
            group: place_arrays(places, weights.read)
            for group, places in group_places(self.bases).items()
        }

    def scale(self) -> dict[str, np.ndarray]:
        """Read the learned scale and bias of the loss that the model was trained with.

        Returns:
          `log_scale`, the logarithm of the scale of similarities (CLIP and SigLIP), and `bias`,
          which is added to them (SigLIP). Numbers that are not in the files are left out.

        Raises:
          DataError: a file is missing or damaged, or has other content under these names.
        """
        weights = Weights(self.directory, _kind(self.bases))
        numbers = {name: weights.read_number(theirs) for name, theirs in _LOSS.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def keep(self, directory: Path) -> None:
        """Copy the files that a run needs to `directory`, unless they exist there.

        `source.json` is written last; it names the original and the SHA-256 of each weight file.
        """
        if (directory / SOURCE_FILE).exists():
            return
        small = (name for name in (*SMALL_FILES, INDEX_FILE) if has_file(self.directory / name))
        for name in (*small, *self._weight_names()):
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

    def _weight_names(self) -> list[str]:
        return [file.name for file in weight_files(self.directory)]


@dataclass(frozen=True)
class Encoders:
    """The pretrained encoders of a run.

    Attributes:
      directories: the directories of the weights, one or two, by the name of the copy that the run
        keeps in its work directory.
    """

    directories: Mapping[str, Pretrained]

    def __str__(self) -> str:
        return "; ".join(map(str, self.directories.values()))

    @property
    def bases(self) -> Bases:
        """Text transformer and vision transformer, each from the directory that has it."""
        found = [each.bases for each in self.directories.values()]
        sides = {"text": [each.text for each in found], "image": [each.image for each in found]}
        return Bases(**{name: next(filter(None, side), None) for name, side in sides.items()})

    @property
    def pieces(self) -> Pieces | None:
        """The tokenizer; None without a text transformer."""
        return next(filter(None, (each.pieces for each in self.directories.values())), None)

    @property
    def inputs(self) -> dict[str, bool]:
        """Whether the encoders read texts instead of vectors, and pictures instead of features."""
        return {"in_words": self.pieces is not None, "in_pixels": self.bases.image is not None}

    def parameters(self) -> dict[str, Any]:
        """The weights of all directories, as `Pretrained.parameters`."""
        return {
            group: arrays
            for each in self.directories.values()
            for group, arrays in each.parameters().items()
        }

    def scale(self) -> dict[str, np.ndarray]:
        """Read `Pretrained.scale` of the directory with both encoders; empty if there is none."""
        whole = [each for each in self.directories.values() if each.bases.text and each.bases.image]
        return whole[0].scale() if whole else {}

    def hashes(self) -> dict[str, dict[str, str]]:
        """SHA-256 of each weight file, by the name of its copy."""
        return {name: each.hashes() for name, each in self.directories.items()}

    def keep(self, workdir: Path) -> None:
        """Copy each directory into a work directory, as `Pretrained.keep`."""
        for name, each in self.directories.items():
            each.keep(workdir / name)


def open_pretrained(
    directory: str | Path,
    text_encoder: str | None = None,
    image_encoder: str | None = None,
    *,
    max_words: int = 0,
    with_weights: bool = True,
) -> Pretrained:
    """Open a directory of pretrained weights and check everything but their values.

    Args:
      directory: the directory, or the name of a model on the Hub.
      text_encoder: the required `model_type`, if its text encoder is used; else None.
      image_encoder: the same for its image encoder.
      max_words: maximum number of tokens per caption, including the tokens around it; 0 is the
        maximum of the model.
      with_weights: also check the weight files; a trained run has its own weights.

    Raises:
      DataError: the directory is invalid; the message lists all errors.
      ConfigError: `max_words` does not fit the model.
    """
    directory, problems = _find(directory), Problems()
    text = image = pieces = None
    config = problems.attempt(read_object, directory, CONFIG_FILE)
    kinds = {"text_encoder": text_encoder, "image_encoder": image_encoder}
    with_kind = problems.attempt(_check_kind, config, directory / CONFIG_FILE, **kinds)
    if text_encoder:
        pooling = problems.attempt(_pooling, directory)
        # An error in the pooling must not hide errors in the config.
        settings = {"pooling": pooling or "first"}
        text = problems.attempt(_read_config, read_text_base, directory, with_kind, **settings)
        has_file = problems.attempt(check_file, directory, TOKENIZER_FILE)
        if text and has_file:
            limit, file = max_words or text.positions, directory / TOKENIZER_FILE
            pieces = problems.attempt(Pieces, file, text, max_words=limit)
    if image_encoder:
        image = problems.attempt(_read_config, read_image_base, directory, with_kind)
        settings = problems.attempt(_read_preparation_file, directory)
        image = problems.attempt(_with_preparation, directory, image, settings)
    if with_weights:
        weights = problems.attempt(Weights, directory, text_encoder or image_encoder)
        bases = Bases(text, image)
        if weights is not None and (text or not text_encoder) and (image or not image_encoder):
            problems.attempt(weights.check, bases)
    problems.raise_all()
    return Pretrained(directory, Bases(text and replace(text, ids=pieces.ids()), image), pieces)


def read_kind(directory: str | Path) -> str:
    """Read the `model_type` of a directory or a model on the Hub, one of `specs.KINDS`.

    Raises:
      DataError: there is no such directory or no config.json, or its type is another.
    """
    directory = _find(directory)
    return _read_config(read_model_type, directory, read_object(directory, CONFIG_FILE))


def _find(directory: str | Path) -> Path:
    found = find_directory(directory, _HUB_FILES)
    if not found.is_dir():
        raise DataError(
            f"{found}: no such directory, expected {CONFIG_FILE}, {WEIGHT_FILE}, for captions "
            f"{TOKENIZER_FILE} and for pictures {PREPARATION_FILE}",
            hint=nearest_flag("pretrained", found),
        )
    return found


def _kind(bases: Bases) -> str:
    return (bases.text or bases.image).kind


def _check_kind(config: Mapping[str, Any], file: Path, **encoders: str | None) -> Mapping[str, Any]:
    kind = config.get("model_type")
    for field, expected in encoders.items():
        if expected and kind != expected:
            raise DataError(
                f"{file}: model_type: found {kind!r}, expected {expected!r}, as in model.{field}"
            )
    return config


def _read_config(read: Any, directory: Path, config: Mapping[str, Any], **settings: Any) -> Any:
    with named_errors(str(directory / CONFIG_FILE)):
        return read(config, **settings)


def _read_preparation_file(directory: Path) -> tuple[str, dict[str, Any]]:
    """Read the picture settings of a directory, and the name of the file that has them."""
    if not has_file(directory / PREPARATION_FILE) and has_file(directory / _PROCESSOR_FILE):
        settings = read_object(directory, _PROCESSOR_FILE).get("image_processor")
        if isinstance(settings, dict):
            return _PROCESSOR_FILE, settings
    return PREPARATION_FILE, read_object(directory, PREPARATION_FILE)


def _with_preparation(directory: Path, base: Any, settings: tuple[str, dict[str, Any]]) -> Any:
    file, fields = settings
    with named_errors(str(directory / file)):
        return replace(base, preparation=read_preparation(fields, base.kind, base.image_size))


def _pooling(directory: Path) -> str:
    """Pooling of a sentence encoder: "mean" or "first"; "first" for other models."""
    if not has_file(directory / POOLING_FILE):
        return "first"
    settings = read_object(directory, POOLING_FILE)
    modes = [name for name, value in settings.items() if name.startswith("pooling_mode_") and value]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    if len(modes) != 1 or modes[0] not in known:
        raise DataError(
            f"{directory / POOLING_FILE}: found pooling by {', '.join(modes) or 'nothing'}, "
            f"expected {' or '.join(known)}"
        )
    return known[modes[0]]
