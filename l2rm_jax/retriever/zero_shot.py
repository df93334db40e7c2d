"""Search vectors of one space, such as CLIP's, without a run."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.config import default
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.record import read_record
from l2rm_jax.errors import DataError, expand_home
from l2rm_jax.evaluation.scoring import paired_similarities, unit_means, vector_similarities
from l2rm_jax.retriever.encoder import WITH_ENCODER
from l2rm_jax.retriever.retriever import Retriever


def open_vectors(directory: str | Path) -> Retriever:
    """Make a retriever for vectors of one space, with their cosine as similarity.

    Texts are encoded by the encoder that the directory names, if it was imported.

    Args:
      directory: the data, with vectors of images; several vectors per image are averaged.

    Raises:
      DataError: `dataset.json` of the directory is damaged.

    Example:
      >>> retriever = open_vectors("data/clip")
      >>> print(retriever.search(["a dog on a beach"], "data/clip:test"))
    """
    directory = expand_home(directory)
    record = read_record(directory)
    config = default()
    config.data.path = directory
    encoder = record["encoder"] if record else None
    return Retriever([SharedSpace(directory)], config.data, encoder)


class SharedSpace:
    """The space of the vectors, with the members of a `Network` that a retriever uses."""

    head, metric, vocabulary, preparation = "cosine", "ip", None, None
    has_alignment = False

    def __init__(self, name: str):
        self.name, self.title = name, "cosine of the stored vectors"
        self.fingerprint = hashlib.blake2b(b"cosine", digest_size=8).hexdigest()
        self._size: int | None = None  # of the vectors encoded so far

    def tokens_of(self, captions: Sequence[str] | RegionFeatures) -> RegionFeatures:
        """Return the captions, if they are vectors.

        Raises:
          DataError: the captions are text, and there is no encoder.
        """
        if not isinstance(captions, RegionFeatures):
            raise DataError(
                f"captions: found text, expected vectors, as {self.name} has no caption encoder",
                hint=WITH_ENCODER,
            )
        return captions

    def encode_images(
        self, images: RegionFeatures | Pixels, done: Callable[[int], None]
    ) -> Float[np.ndarray, "I D"]:
        """Unit vectors of images.

        Raises:
          DataError: pictures, a mean of zero, or vectors of another size than those before.
        """
        if isinstance(images, Pixels):
            raise DataError(f"{images.name}: found pictures, expected vectors of one space")
        return self._encode(images, done)

    def encode_captions(
        self, tokens: RegionFeatures, done: Callable[[int], None]
    ) -> Float[np.ndarray, "J D"]:
        """Unit vectors of captions; errors as above."""
        return self._encode(tokens, done)

    def similarity(
        self,
        images: Float[np.ndarray, "I D"],
        captions: Float[np.ndarray, "J D"],
        done: Callable[[int], None],
    ) -> Float[np.ndarray, "I J"]:
        """Cosine of every image with every caption."""
        return vector_similarities(images, captions, self.metric)

    def pair_similarities(
        self,
        images: Float[np.ndarray, "I D"],
        captions: Float[np.ndarray, "J D"],
        rows: Int[np.ndarray, "P 2"],
    ) -> Float[np.ndarray, " P"]:
        """Cosines of selected pairs of rows, image and caption."""
        return paired_similarities(images[rows[:, 0]], captions[rows[:, 1]], self.metric)

    def _encode(
        self, features: RegionFeatures, done: Callable[[int], None]
    ) -> Float[np.ndarray, "N D"]:
        size = features.shape[-1]
        if self._size not in (None, size):
            raise DataError(
                f"{features.name}: found vectors of {size} dimensions, expected {self._size}, as "
                "all vectors must be in one space"
            )
        self._size = size
        vectors = unit_means(features).astype(np.float32)
        done(len(features))
        return vectors
