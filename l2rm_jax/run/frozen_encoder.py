"""Pretrained encoders as their directories have them: pictures and captions to vectors or states.

Cross-fitting judges pairs by such vectors, and `l2rm import --encoder=jax:DIR` writes them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Float16, Int32

from l2rm_jax.data.batches import caption_batches, image_batches
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.pairs import Tokens
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.models.pretrained import TextTransformer, VisionTransformer
from l2rm_jax.models.pretrained.vision import to_numbers
from l2rm_jax.pretrained.directory import Encoders
from l2rm_jax.pretrained.specs import ImageBase, TextBase
from l2rm_jax.run.pair_scores import collect_rows

# Blocks of states [n, S, D], the rows that they belong to, and how many states each has.
Blocks = Iterator[tuple[np.ndarray, Float[np.ndarray, "n S D"], Int32[np.ndarray, " n"]]]


class FrozenCaptions:
    """A pretrained text encoder.

    Args:
      base: its architecture.
      params: its arrays.
      vector: whether to make one vector a caption, or a state of every token.
    """

    def __init__(self, base: TextBase, params: Any, vector: bool):
        model = TextTransformer(base, vector)
        self._params = jax.device_put(params)
        self._encode = jax.jit(
            lambda params, *inputs: model.apply({"params": params}, *inputs, False)
        )

    def blocks(self, tokens: Tokens, batch_size: int) -> Blocks:
        """Encode captions, given as the ids of the directory's tokenizer, sorted by length."""
        for batch, rows, count in caption_batches(tokens, batch_size):
            states, counts = self._encode(self._params, batch.tokens, batch.lengths)
            yield rows[:count], np.asarray(states)[:count], np.asarray(counts)[:count]


class FrozenImages:
    """A pretrained image encoder.

    Args:
      base: its architecture.
      params: its arrays.
      vector: whether to make one vector a picture, or also a state of every patch.
    """

    def __init__(self, base: ImageBase, params: Any, vector: bool):
        model = VisionTransformer(base, vector)
        self._params = jax.device_put(params)

        def encode(params: Any, pixels: jax.Array) -> jax.Array:
            numbers = to_numbers(pixels, base.preparation)
            return model.apply({"params": params}, numbers, False)

        self._encode = jax.jit(encode)

    def blocks(self, pixels: Pixels, batch_size: int) -> Blocks:
        """Encode pictures, in their order."""
        start = 0
        for batch, count in image_batches(pixels, batch_size):
            states = np.asarray(self._encode(self._params, batch.images))[:count]
            yield np.arange(start, start + count), states, np.full(count, states.shape[1], np.int32)
            start += count


def judged_vectors(
    encoders: Encoders, pairs: TrainPairs, batch_size: int
) -> dict[str, Float16[np.ndarray, "n D"]]:
    """One vector of each caption and of each image, by the pretrained encoders that there are.

    Args:
      encoders: the encoders.
      pairs: the captions, in the pieces of the encoder, and the images.
      batch_size: captions or images encoded at once.

    Returns:
      The vectors of the sides that have an encoder: `captions`, `images`.
    """
    bases, params, judged = encoders.bases, encoders.parameters(), {}
    if bases.text is not None:
        captions = FrozenCaptions(bases.text, params["text_base"], vector=True)
        blocks, title = captions.blocks(pairs.tokens, batch_size), _title("captions", pairs)
        judged["captions"] = _first_states(blocks, len(pairs), title)
    if bases.image is not None:
        images = FrozenImages(bases.image, params["image_base"], vector=True)
        blocks, title = images.blocks(pairs.images, batch_size), _title("images", pairs)
        judged["images"] = _first_states(blocks, len(pairs.images), title)
    return judged


def with_vectors(
    pairs: TrainPairs, vectors: Mapping[str, Float16[np.ndarray, "n D"]]
) -> TrainPairs:
    """The pairs with the vectors that `judged_vectors` gives."""
    encoded = {
        side: RegionFeatures.from_array(array[:, None], _title(side, pairs))
        for side, array in vectors.items()
    }
    return replace(pairs, encoded=replace(pairs.pairs, **encoded))


def _title(what: str, pairs: TrainPairs) -> str:
    return f"vectors of the {what} of {pairs.split}"


def _first_states(blocks: Blocks, total: int, title: str) -> Float16[np.ndarray, "n D"]:
    batches = ((states, rows) for rows, states, _ in blocks)
    return collect_rows(batches, lambda states: states[:, 0].astype(np.float16), total, title)
