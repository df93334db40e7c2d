"""CHAN: compare each word with its most similar region only.

Pan et al., "Fine-Grained Image-Text Matching by Cross-Modal Hard Aligning Network", CVPR 2023, with
the coding (VHACoding) and the poolings of its published rows, as its public code computes them
(ppanzx/CHAN).
"""

from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.attention import region_word_cosines
from l2rm_jax.models.chunks import map_captions, pairwise
from l2rm_jax.models.encoders import ImageCode, RegionEncoder, TextCode
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import Linear, add_bias, l2_normalise, uniform_init

TEMPERATURE = 0.1  # of the pooling over words, `belta` in the code
HEADS_OF_ATTENTION = 8
POOLINGS = ("mean", "lse")


class CHAN(SimilarityHead):
    """Similarity of every image with every caption: words pooled after a hard assignment.

    A word contributes its cosine m to the most similar region, and only that region gets a
    gradient. With the pooling "mean" the score is the mean of m over the words, in [-1, 1]. With
    "lse" it is `log sum exp(m / 0.1)`, about 10 m plus the logarithm of the caption's length. As in
    the authors' code, it is not scaled back, and the logarithm is not subtracted.

    Attributes:
      pooling: "mean" (the paper's BERT rows) or "lse" (its GRU rows).
    """

    choices: ClassVar = {"pooling": POOLINGS}

    pooling: str

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        score, sparse = partial(_score, self.pooling), self.sparse_gradient
        return map_captions(score, (), images, texts, self.chunk, sparse, vectors=False).T

    def bounded(self, sims: Float[Array, "..."]) -> Float[Array, "..."]:
        """Keep cosines; map "lse" scores by the hyperbolic tangent of their tenth."""
        return sims if self.pooling == "mean" else jnp.tanh(TEMPERATURE * sims)

    def alignment(self, images: ImageCode, texts: TextCode) -> Float[Array, "P R L"]:
        """Weight of each word at its most similar region, zero elsewhere; see `SimilarityHead`.

        With "mean", words weigh the same; with "lse", they weigh as in the gradient of the score.
        """
        return pairwise(partial(_align, self.pooling))((), images, texts)

    @classmethod
    def make_encoders(
        cls, sizes: Any, vocabulary_size: int, axis_name: str | None
    ) -> tuple[nn.Module, nn.Module]:
        """Make an image encoder whose regions attend to each other, and the usual text encoder."""
        _, texts = super().make_encoders(sizes, vocabulary_size, axis_name)
        return AttendingImageEncoder(sizes.embed_dim), texts


register_head("chan", lambda config: CHAN(config.model.pooling))


class AttendingImageEncoder(nn.Module):
    """Encoder of region features `[I, R, Dv]` with region counts `[I]`.

    A linear map, then `RegionAttention`. In the authors' code, regions also attend to padding; here
    they do not, so that the encoding of an image does not depend on its batch.
    """

    embed_dim: int

    @nn.compact
    def __call__(
        self, images: Float[Array, "I R Dv"], counts: Int[Array, " I"], train: bool
    ) -> ImageCode:
        is_region = jnp.arange(images.shape[1])[None] < counts[:, None]
        mask = is_region.astype(jnp.float32)
        # NaN in the padding must not reach the gradient.
        images = jnp.where(is_region[..., None], images, 0.0)
        regions = RegionEncoder(self.embed_dim, normalise=False, name="regions")(images)
        regions = RegionAttention(name="region_attention")(regions, mask)
        return ImageCode(l2_normalise(regions) * mask[..., None], mask)


class RegionAttention(nn.Module):
    """`x + attention(norm(x))` with eight heads: `[N, K, D], mask [N, K] -> [N, K, D]`.

    The layer norm and the attention are PyTorch's `LayerNorm` and `MultiheadAttention`, without
    dropout. If D is not divisible by eight, the number of heads is the largest divisor below eight.
    """

    @nn.compact
    def __call__(
        self, x: Float[Array, "N K D"], mask: Float[Array, "N K"]
    ) -> Float[Array, "N K D"]:
        size = x.shape[-1]
        heads = next(n for n in range(HEADS_OF_ATTENTION, 0, -1) if size % n == 0)
        normed = nn.LayerNorm(epsilon=1e-5, name="norm")(x)
        kernel = self.param("input_kernel", uniform_init((6 / (4 * size)) ** 0.5), (size, 3 * size))
        bias = self.param("input_bias", nn.initializers.zeros_init(), (3 * size,))
        projected = add_bias(normed @ kernel, bias).reshape(*x.shape[:2], 3, heads, size // heads)
        queries, keys, values = jnp.moveaxis(projected, 2, 0)
        attended = nn.dot_product_attention(
            queries, keys, values, mask=mask[:, None, None, :] > 0, deterministic=True
        )
        return x + Linear(size, name="output")(attended.reshape(x.shape))


def word_maxima(
    cosines: Float[Array, "I R C L"], mask: Float[Array, "I R"]
) -> Float[Array, "I C L"]:
    """Largest cosine of each word with a region of each image; any number at padded words."""
    return jnp.max(cosines, axis=1, where=mask[..., None, None] > 0, initial=-1.0)


def pool_words(
    maxima: Float[Array, "I C L"], word_mask: Float[Array, "C L"], pooling: str
) -> Float[Array, "I C"]:
    """Pool the values of the words of a caption, as `CHAN.pooling` says."""
    is_word = word_mask > 0
    if pooling == "mean":
        return jnp.mean(maxima, axis=2, where=is_word)
    return jax.nn.logsumexp(maxima / TEMPERATURE, axis=2, where=is_word)


def _score(pooling: str, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I"]:
    maxima = word_maxima(region_word_cosines(images, texts), images.mask)
    return pool_words(maxima, texts.mask, pooling).T


def _align(pooling: str, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I R L"]:
    cosines = region_word_cosines(images, texts)
    maxima = word_maxima(cosines, images.mask)
    weights = jax.grad(lambda maxima: jnp.sum(pool_words(maxima, texts.mask, pooling)))(maxima)
    weights /= jnp.sum(weights, axis=2, keepdims=True)  # of "lse" they sum to 1 / temperature
    best = jnp.argmax(jnp.where(images.mask[..., None, None] > 0, cosines, -jnp.inf), axis=1)
    assigned = jax.nn.one_hot(best, cosines.shape[1], axis=1)
    return jnp.moveaxis(assigned * weights[:, None], 2, 0)
