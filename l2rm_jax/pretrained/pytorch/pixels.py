"""Encoder without a model: store the pixels of pictures, which a run then encodes itself.

A directory in Hugging Face's format defines the preprocessing: its `config.json` has the size, and
its `preprocessor_config.json` the resizing. Weights are not needed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from l2rm_jax.errors import ConfigError
from l2rm_jax.pretrained.directory import open_pretrained, read_kind
from l2rm_jax.pretrained.preparation import prepare
from l2rm_jax.pretrained.specs import Preparation

PIXELS = "pixels"  # the value of `kind` in `dataset.json`


class PixelImages:
    """Encoder of pictures as the pixels that a model takes."""

    def __init__(self, name: str, preparation: Preparation):
        self._name, self._preparation = name, preparation

    def describe(self) -> dict[str, Any]:
        """Describe the preprocessing, for `dataset.json`."""
        return {"model": f"pixels:{self._name}", "kind": PIXELS, **self._preparation.resizing}

    def encode(self, pictures: Sequence[Image.Image]) -> UInt8[np.ndarray, "n S S 3"]:
        """Resize and cut pictures, and return their pixels."""
        return prepare(pictures, self._preparation)


def load_pixels(directory: str, with_tokens: bool) -> tuple[PixelImages, None]:
    """Read the preprocessing of the model in a directory.

    Raises:
      ConfigError: `with_tokens`, as the pixels are encoded only in a run.
      DataError: the directory lacks a file, or its model takes no pictures; lists every error.
    """
    if with_tokens:
        raise ConfigError(
            "--tokens cannot be combined with --encoder=pixels:DIR; a run encodes the pixels"
        )
    opened = open_pretrained(directory, image_encoder=read_kind(directory), with_weights=False)
    return PixelImages(directory, opened.bases.image.preparation), None
