"""Interface of encoders, which turn photographs and captions into features."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from jaxtyping import Float16, Int32, UInt8

if TYPE_CHECKING:  # Pillow and NumPy are imported by the encoders themselves
    import numpy as np
    from PIL.Image import Image


@runtime_checkable
class Encoder(Protocol):
    """Turn pictures and captions into features, one batch at a time.

    The result for a picture or a caption does not depend on the rest of its batch.

    Attributes:
      name: the encoder as the user wrote it: `transformers:openai/clip-vit-base-patch32`.
      cut_captions: number of captions so far that were too long for the model and lost their end.
    """

    name: str
    cut_captions: int

    def describe(self) -> dict[str, Any]:
        """Describe the encoder for `dataset.json`, as JSON values.

        The description has the name, the versions of the libraries, a hash of the weights, the
        sizes of the features, and the kind of tokens.
        """
        ...

    def encode_images(
        self, pictures: Sequence["Image"]
    ) -> 'Float16[np.ndarray, "n D"] | Float16[np.ndarray, "n R D"] | UInt8[np.ndarray, "n S S 3"]':
        """Encode pictures, which are upright and in mode RGB, as one vector or R regions each.

        An encoder without a model returns their pixels.
        """
        ...

    def encode_captions(
        self, texts: Sequence[str]
    ) -> (
        'tuple[Float16[np.ndarray, "n D"], None] '
        '| tuple[Float16[np.ndarray, "n W D"], Int32[np.ndarray, " n"]] | None'
    ):
        """Encode captions as one vector each, or as W word vectors each, the last ones padding.

        Returns:
          The vectors, and for word vectors their number per caption. None if the encoder has no
          caption model, so that captions remain words.
        """
        ...
