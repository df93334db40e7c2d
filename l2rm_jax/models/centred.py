"""IN2R's model: pooled regions and words, minus the mean vector of all images or captions.

Liu et al., "Intra-Modal Neighbors Never Lie: Rectifying Inter-Modal Noisy Correspondence via
Graph-Based Intra-Modal Reasoning", ICML 2026. A perceptron is added to the projections of regions
and of words, and VSE-infinity's generalised operator pools them.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.devices import parallel
from l2rm_jax.models.aggregate import Cosine, residual_projection
from l2rm_jax.models.encoders import ImageCode, TextCode, WordEncoder
from l2rm_jax.models.head import register_head
from l2rm_jax.models.layers import Dropout, l2_normalise
from l2rm_jax.models.vse import GeneralisedPooling

MOMENTUM = 0.1  # weight of a batch in the running mean, as in batch normalisation


class Centring(nn.Module):
    """Subtract a mean from unit vectors `[N, D]`, and scale them to unit length again.

    Training subtracts the mean of the global batch, evaluation a running average of these means.
    The authors' code takes the batch in evaluation too, so that a score depends on other pairs.
    """

    axis_name: str | None = None

    @nn.compact
    def __call__(self, vectors: Float[Array, "N D"], train: bool) -> Float[Array, "N D"]:
        running = self.variable("batch_stats", "mean", jnp.zeros, vectors.shape[-1:])
        mean = running.value
        if train:
            mean = parallel.device_mean(jnp.mean(vectors, axis=0), self.axis_name)
            if not self.is_initializing():
                running.value += MOMENTUM * (mean - running.value)
        return l2_normalise(vectors - mean[None])


class CentredImageEncoder(nn.Module):
    """Encoder of region features `[I, R, Dv]` with region counts `[I]`; dropout on the features."""

    embed_dim: int
    dropout: float
    axis_name: str | None = None

    @nn.compact
    def __call__(
        self, images: Float[Array, "I R Dv"], counts: Int[Array, " I"], train: bool
    ) -> ImageCode:
        mask = _mask(images, counts)
        images = Dropout(self.dropout, self.axis_name)(_without_padding(images, mask), train)
        return ImageCode(*_code(images, mask, self.embed_dim, self.axis_name, train))


class CentredTextEncoder(nn.Module):
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
        mask = _mask(tokens, lengths)
        if self.vocabulary_size:
            sizes = (self.vocabulary_size, self.word_dim, self.embed_dim)
            shared = {"axis_name": self.axis_name, "normalise": False, "name": "words"}
            words = WordEncoder(*sizes, self.dropout, **shared)(tokens, mask, train)
        else:
            words = Dropout(self.dropout, self.axis_name)(_without_padding(tokens, mask), train)
        return TextCode(*_code(words, mask, self.embed_dim, self.axis_name, train))


class Centred(Cosine):
    """Cosine of the vectors that the encoders of IN2R make, in [-1, 1]."""

    @classmethod
    def make_encoders(
        cls, sizes: Any, vocabulary_size: int, axis_name: str | None
    ) -> tuple[nn.Module, nn.Module]:
        """Make the encoders of IN2R, whose global vectors are centred."""
        shared = (sizes.embed_dim, sizes.dropout, axis_name)
        texts = CentredTextEncoder(vocabulary_size, sizes.word_dim, *shared)
        return CentredImageEncoder(*shared), texts


register_head("centred", lambda config: Centred())


def _mask(items: Array, counts: Int[Array, " N"]) -> Float[Array, "N K"]:
    """Make the mask of regions or words: 1 before the count of a sample."""
    return (jnp.arange(items.shape[1])[None] < counts[:, None]).astype(jnp.float32)


def _without_padding(x: Float[Array, "N K d"], mask: Float[Array, "N K"]) -> Float[Array, "N K d"]:
    """Set the padding to 0: NaN there must not reach the gradient."""
    return jnp.where(mask[..., None] > 0, x, 0.0)


def _code(
    inputs: Float[Array, "N K d"],
    mask: Float[Array, "N K"],
    embed_dim: int,
    axis_name: str | None,
    train: bool,
) -> tuple[Float[Array, "N K D"], Float[Array, "N K"], Float[Array, "N D"]]:
    """Unit local vectors, their mask, and centred unit global vectors.

    Call this function inside a Flax module: it adds its layers to that module.
    """
    local = residual_projection(inputs, mask, embed_dim, axis_name, train)
    pooled = l2_normalise(GeneralisedPooling(name="pooling")(local, mask))
    overall = Centring(axis_name, name="centring")(pooled, train)
    return l2_normalise(local) * mask[..., None], mask, overall
