"""What an encoder is: photographs and captions in, features out."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float16, Int32, UInt8
from PIL import Image


@runtime_checkable
class Encoder(Protocol):
    """Turns pictures and captions into features, a batch at a time.

    The result for a picture or a caption does not depend on the others of its batch.

    Attributes:
      name: the encoder as the user wrote it: `transformers:openai/clip-vit-base-patch32`.
      cut_captions: number of captions so far that were too long for the model and lost their end.
    """

    name: str
    cut_captions: int

    def describe(self) -> dict[str, Any]:
        """What `dataset.json` records of the encoder, as values that JSON can hold.

        It has the name, the versions of the libraries, a hash of the weights, the sizes of the
        features, and which kind of tokens they are.
        """
        ...

    def encode_images(
        self, pictures: Sequence[Image.Image]
    ) -> 'Float16[np.ndarray, "n D"] | Float16[np.ndarray, "n R D"] | UInt8[np.ndarray, "n S S 3"]':
        """Encode pictures, which are upright and in mode RGB, as one vector or R regions each.

        An encoder without a model gives their pixels.
        """
        ...

    def encode_captions(
        self, texts: Sequence[str]
    ) -> (
        'tuple[Float16[np.ndarray, "n D"], None] '
        '| tuple[Float16[np.ndarray, "n W D"], Int32[np.ndarray, " n"]] | None'
    ):
        """Encode captions as one vector each, or as W word vectors of which the first are real.

        Returns:
          The vectors, and the number of real ones of each caption if there are W. None if the
          encoder has no vectors for captions, which then stay words.
        """
        ...
