"""One vector per image and one per caption, compared by their cosine.

The model of RCSL ("Robust Semi-paired Multimodal Learning for Cross-modal Retrieval", AAAI 2026).
An image vector is a weighted mean of the regions, and a caption vector is a weighted mean of the
words; each dimension has its own weights. Scoring a pair is one dot product, so that finding
nearest neighbours is cheap.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.encoders import ImageCode, RegionEncoder, TextCode, WordEncoder
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import BatchNorm, Linear, l2_normalise


class Aggregator(nn.Module):
    """Weighted mean of local vectors, scaled to unit length: `[N, K, D], mask [N, K] -> [N, D]`.

    Each dimension has its own weights: a softmax over the local vectors, with logits from a linear
    map. The map has no bias, which would cancel in the softmax.
    """

    @nn.compact
    def __call__(
        self, local: Float[Array, "N K D"], mask: Float[Array, "N K"]
    ) -> Float[Array, "N D"]:
        size = local.shape[-1]
        kernel = self.param("kernel", nn.initializers.xavier_uniform(), (size, size))
        weights = jax.nn.softmax(local @ kernel, axis=1, where=mask[..., None] > 0)
        return l2_normalise(jnp.sum(weights * local, axis=1))


def residual_projection(
    inputs: Float[Array, "N K d"],
    mask: Float[Array, "N K"],
    embed_dim: int,
    axis_name: str | None,
    train: bool,
) -> Float[Array, "N K D"]:
    """Sum of a linear projection and a two-layer perceptron, per local vector.

    The batch normalisation inside the perceptron covers the vectors of all samples, without
    padding. Call this function inside a Flax module: it adds its layers to that module.

    Args:
      inputs: local vectors; finite in the padding.
      mask: 1 for a local vector, 0 for padding.
      embed_dim: size D of the result.
      axis_name: mapped axis of the devices, or None.
      train: whether to normalise with batch statistics.
    """
    hidden = Linear(embed_dim // 2, name="hidden")(inputs)
    norm = BatchNorm(2, axis_name, name="norm")
    hidden = nn.relu(norm(hidden, train, mask[..., None]))
    residual = Linear(embed_dim, name="residual")(hidden)
    return residual + Linear(embed_dim, name="projection")(inputs)


class AggregatedImageEncoder(nn.Module):
    """Encoder of region features `[I, R, Dv]` with region counts `[I]`: `residual_projection`."""

    embed_dim: int
    axis_name: str | None = None

    @nn.compact
    def __call__(
        self, images: Float[Array, "I R Dv"], counts: Int[Array, " I"], train: bool
    ) -> ImageCode:
        is_region = jnp.arange(images.shape[1])[None] < counts[:, None]
        mask = is_region.astype(jnp.float32)
        # NaN in the padding must not reach the gradient.
        images = jnp.where(is_region[..., None], images, 0.0)
        local = residual_projection(images, mask, self.embed_dim, self.axis_name, train)
        overall = Aggregator(name="aggregator")(local, mask)
        return ImageCode(l2_normalise(local) * mask[..., None], mask, overall)


class AggregatedTextEncoder(nn.Module):
    """Encoder of token ids `[J, L]`, or of vectors `[J, L, Dt]` instead of words.

    Caption lengths are `[J]`. Attributes are as for `WordEncoder`; `vocabulary_size` is 0 if
    captions are vectors.
    """

    vocabulary_size: int
    word_dim: int
    embed_dim: int
    dropout: float
    axis_name: str | None = None

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "J L"] | Float[Array, "J L Dt"],
        lengths: Int[Array, " J"],
        train: bool,
    ) -> TextCode:
        mask = (jnp.arange(tokens.shape[1])[None] < lengths[:, None]).astype(jnp.float32)
        if self.vocabulary_size:
            sizes = (self.vocabulary_size, self.word_dim, self.embed_dim)
            shared = {"axis_name": self.axis_name, "normalise": False, "name": "words"}
            words = WordEncoder(*sizes, self.dropout, **shared)(tokens, mask, train)
        else:
            words = RegionEncoder(self.embed_dim, normalise=False, name="words")(tokens)
            words *= mask[..., None]
        overall = Aggregator(name="aggregator")(words, mask)
        return TextCode(l2_normalise(words), mask, overall)


class Cosine(SimilarityHead):
    """Cosine of the global vectors that the encoders of RCSL make, in [-1, 1]."""

    @classmethod
    def make_encoders(
        cls, sizes: Any, vocabulary_size: int, axis_name: str | None
    ) -> tuple[nn.Module, nn.Module]:
        """Make the encoders of RCSL, whose global vectors are weighted means."""
        words = (vocabulary_size, sizes.word_dim, sizes.embed_dim, sizes.dropout, axis_name)
        images = AggregatedImageEncoder(sizes.embed_dim, axis_name)
        return images, AggregatedTextEncoder(*words)

    def embed_images(self, images: ImageCode) -> Float[Array, "I D"]:
        """Unit vectors of the images."""
        return images.overall

    def embed_texts(self, texts: TextCode) -> Float[Array, "J D"]:
        """Unit vectors of the captions."""
        return texts.overall

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        return self.embed_images(images) @ self.embed_texts(texts).T


register_head("aggregate", lambda config: Cosine())
