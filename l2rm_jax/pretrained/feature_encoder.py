"""Encoders, which turn photographs and captions into features: two halves and their interface."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Float16, Int32, UInt8
from PIL import Image

from l2rm_jax.errors import DataError

# A vector or R regions of each picture, or its pixels.
ImageFeatures = (
    Float16[np.ndarray, "n D"] | Float16[np.ndarray, "n R D"] | UInt8[np.ndarray, "n S S 3"]
)
# A vector of each caption, or W vectors of which the first are real, and the number of these.
CaptionFeatures = (
    tuple[Float16[np.ndarray, "n D"], None]
    | tuple[Float16[np.ndarray, "n W D"], Int32[np.ndarray, " n"]]
)
PIXELS = "pixels"  # the kind of an encoder without a model, in `dataset.json`
MAX_TOKENS = 64  # of a caption encoded as words; training uses no more
AT_ONCE = 32  # pictures that a model gets at once
_PROBE = 25, 33, 3  # shape of the picture in `Encoder.image_key`


@dataclass(frozen=True)
class PictureEncoder:
    """Image half of an encoder.

    Attributes:
      description: the model and the sizes of its features, for `dataset.json`.
      encode_batch: turns at most `AT_ONCE` pictures into features.
    """

    description: Mapping[str, Any]
    encode_batch: Callable[[Sequence[Image.Image]], ImageFeatures]

    def encode(self, pictures: Sequence[Image.Image]) -> ImageFeatures:
        """Turn any number of pictures into features."""
        starts = range(0, len(pictures), AT_ONCE)
        return np.concatenate([self.encode_batch(pictures[at : at + AT_ONCE]) for at in starts])


class CaptionEncoder(Protocol):
    """Caption half of an encoder: turn captions into features.

    Attributes:
      description: as in `PictureEncoder`.
      cut: number of captions so far that were too long for the model and lost their end.
    """

    description: Mapping[str, Any]
    cut: int

    def encode(self, texts: Sequence[str]) -> CaptionFeatures: ...


class Encoder:
    """Turn pictures and captions into features, one batch at a time.

    The result for a picture or a caption does not depend on the rest of its batch.

    Args:
      name: the encoder as the user wrote it: `transformers:openai/clip-vit-base-patch32`.
      images: the model of pictures.
      captions: the model of captions, the same or another; None: captions stay words.
    """

    def __init__(self, name: str, images: PictureEncoder, captions: CaptionEncoder | None):
        self.name, self._images, self._captions = name, images, captions

    def describe(self) -> dict[str, Any]:
        """Describe the encoder for `dataset.json`, as JSON values.

        The description has the name, the versions of the libraries, a hash of the weights, the
        sizes of the features, and the kind of tokens.
        """
        captions = None if self._captions is None else {**self._captions.description}
        return {"name": self.name, "images": {**self._images.description}, "captions": captions}

    def image_key(self) -> str:
        """Hash all that the features of a picture depend on; "" for an encoder without a model.

        It hashes the description without names, and the features of a fixed picture, which
        depend on weights and preprocessing.
        """
        described = {**self._images.description, "model": ""}
        if "weights" not in described:
            return ""
        noise = np.random.default_rng(0).integers(0, 256, _PROBE, np.uint8)
        features = self._images.encode([Image.fromarray(noise).resize((330, 250))])
        digest = hashlib.blake2b(repr(sorted(described.items())).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(features))
        return digest.hexdigest()

    @property
    def cut_captions(self) -> int:
        """Number of captions so far that were too long for the model and lost their end."""
        return 0 if self._captions is None else self._captions.cut

    def encode_images(self, pictures: Sequence[Image.Image]) -> ImageFeatures:
        """Encode pictures, which are upright and in mode RGB, as one vector or R regions each.

        An encoder without a model returns their pixels.
        """
        return self._images.encode(pictures)

    def encode_captions(self, texts: Sequence[str]) -> CaptionFeatures | None:
        """Encode captions as one vector each, or as W word vectors each, the last ones padding.

        Returns:
          The vectors, and for word vectors their number per caption. None if the encoder has no
          caption model, so that captions remain words.
        """
        return None if self._captions is None else self._captions.encode(texts)


def as_float16(name: str, features: Float[np.ndarray, "..."]) -> Float16[np.ndarray, "..."]:
    """Round features to float16.

    Raises:
      DataError: a feature is not finite, or too large for float16.
    """
    with np.errstate(over="ignore"):
        rounded = features.astype(np.float16)
    if not np.isfinite(rounded).all():
        largest = np.abs(features).max()
        raise DataError(f"{name}: found a feature of {largest:g}, expected the range of float16")
    return rounded
