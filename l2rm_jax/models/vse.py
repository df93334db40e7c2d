"""VSE: one vector per image and per caption, compared by their cosine.

Frome et al., DeViSE, 2013; Chen et al., "Learning the Best Pooling Strategy for Visual Semantic
Embedding" (VSE-infinity), CVPR 2021.
"""

from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.gru import bidirectional_gru
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import l2_normalise, masked_mean

POOLINGS = ("mean", "gpo")
POSITION_DIM = 32  # size of GPO's positional encoding and of its GRU
TEMPERATURE = 0.1  # of the softmax that gives GPO's weights


class VSE(SimilarityHead):
    """Cosine of every image vector with every caption vector, in [-1, 1].

    Attributes:
      pooling: "mean", or "gpo" for the generalised pooling operator.
    """

    choices: ClassVar = {"pooling": POOLINGS}

    pooling: str

    def setup(self):
        if self.pooling == "gpo":
            self.image_pooling, self.text_pooling = GeneralisedPooling(), GeneralisedPooling()
        else:
            self.image_pooling = self.text_pooling = masked_mean

    def embed_images(self, images: ImageCode) -> Float[Array, "I D"]:
        """Unit vectors of the images: pooled regions."""
        return l2_normalise(self.image_pooling(images.regions, images.mask))

    def embed_texts(self, texts: TextCode) -> Float[Array, "J D"]:
        """Unit vectors of the captions: pooled words."""
        return l2_normalise(self.text_pooling(texts.words, texts.mask))

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        return self.embed_images(images) @ self.embed_texts(texts).T


register_head("vse", lambda config: VSE(config.model.pooling))


class GeneralisedPooling(nn.Module):
    """Pooling of regions or words: in each dimension, a weighted mean of the sorted values.

    Values are sorted from largest to smallest over the regions or words of a sample. A GRU over
    positional encodings makes the weights, so they depend only on the rank and on the number of
    regions or words. The mean and the maximum are special cases.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "n k d"], mask: Float[Array, "n k"]) -> Float[Array, "n d"]:
        is_item = mask[..., None] > 0
        # Padding is sorted to the end, where the mask is 0.
        ranked = -jnp.sort(jnp.where(is_item, -x, jnp.inf), axis=1)
        ranked = jnp.where(is_item, ranked, 0.0)
        positions = jnp.broadcast_to(_positions(x.shape[1]), (*mask.shape, POSITION_DIM))
        forward, backward = bidirectional_gru(positions, mask, POSITION_DIM)
        kernel = self.param("score", nn.initializers.xavier_uniform(), (POSITION_DIM, 1))
        scores = ((forward + backward) / 2 @ kernel)[..., 0]
        weights = jax.nn.softmax(scores / TEMPERATURE, axis=1, where=mask > 0)
        return jnp.einsum("nk,nkd->nd", weights, ranked)


def _positions(length: int) -> Float[Array, "length P"]:
    """Sinusoidal positional encoding, with wavelengths 2 pi to about 5600 * 2 pi."""
    rates = 10000.0 ** (-jnp.arange(0, POSITION_DIM, 2) / POSITION_DIM)
    angles = jnp.arange(length)[:, None].astype(rates.dtype) * rates[None]
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, POSITION_DIM)
