"""Encoders of one modality each: region features to region vectors, words to word vectors."""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.gru import bidirectional_gru
from l2rm_jax.models.layers import (
    BatchNorm,
    Dropout,
    Linear,
    l2_norm,
    l2_normalise,
    masked_mean,
    uniform_init,
)


@flax.struct.dataclass
class ImageCode:
    """A batch of encoded images.

    Attributes:
      regions: unit region vectors; zero in the padding.
      mask: 1 for a region, 0 for padding.
      overall: a unit global vector per image; None unless the head needs it.
      norms: norms of the region vectors before they were scaled to unit length.
      products: inner products of the regions of an image, in full float32 precision; None unless
        the head needs them.
    """

    regions: Float[Array, "I R D"]
    mask: Float[Array, "I R"]
    overall: Float[Array, "I D"] | None = None
    norms: Float[Array, "I R"] | None = None
    products: Float[Array, "I R R"] | None = None


@flax.struct.dataclass
class TextCode:
    """A batch of encoded captions.

    Attributes:
      words: unit word vectors; zero in the padding.
      mask: 1 for a word, 0 for padding.
      overall: a unit global vector per caption; None unless the head needs it.
      norms: norms of the word vectors before they were scaled to unit length.
      padded_length: L before `cut`; 0 for captions that were not cut.
    """

    words: Float[Array, "J L D"]
    mask: Float[Array, "J L"]
    overall: Float[Array, "J D"] | None = None
    norms: Float[Array, "J L"] | None = None
    padded_length: int = flax.struct.field(pytree_node=False, default=0)

    def cut(self, length: int) -> "TextCode":
        """Keep the first `length` words of each caption."""
        return self.replace(
            words=self.words[:, :length],
            mask=self.mask[:, :length],
            norms=None if self.norms is None else self.norms[:, :length],
            padded_length=self.mask.shape[1],
        )


class RegionEncoder(nn.Module):
    """Linear projection, scaled to unit length if `normalise`: `[I, R, Dv] -> [I, R, D]`.

    It also projects captions that are given as vectors. With `embed_dim` 0, vectors are not
    projected.
    """

    embed_dim: int
    normalise: bool = True

    @nn.compact
    def __call__(self, images: Float[Array, "I R Dv"]) -> Float[Array, "I R D"]:
        regions = Linear(self.embed_dim, name="projection")(images) if self.embed_dim else images
        return l2_normalise(regions) if self.normalise else regions


class WordEncoder(nn.Module):
    """Word embedding and bidirectional GRU: token ids `[J, L]` to word vectors `[J, L, D]`.

    A word vector is the mean of both directions, scaled to unit length if `normalise`. Vectors
    past the end of a caption are zero.
    """

    vocabulary_size: int
    word_dim: int
    embed_dim: int
    dropout: float
    axis_name: str | None = None
    normalise: bool = True

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "J L"], mask: Float[Array, "J L"], train: bool
    ) -> Float[Array, "J L D"]:
        table = self.param("embedding", uniform_init(0.1), (self.vocabulary_size, self.word_dim))
        inputs = Dropout(self.dropout, self.axis_name)(table[tokens], train)
        forward, backward = bidirectional_gru(inputs, mask, self.embed_dim)
        words = (forward + backward) / 2
        return l2_normalise(words) if self.normalise else words


class SelfAttention(nn.Module):
    """Unit global vector: the mean of local vectors, weighted by their agreement with the mean.

    `[N, K, D], mask [N, K] -> [N, D]`. With `normalise`, batch normalisation follows both
    projections, as on the image side of SGRAF; for the local vectors it has one channel per
    region position.
    """

    dropout: float
    normalise: bool
    axis_name: str | None = None

    @nn.compact
    def __call__(
        self, local: Float[Array, "N K D"], mask: Float[Array, "N K"], train: bool
    ) -> Float[Array, "N D"]:
        features = local.shape[-1]
        queries = Linear(features, name="global_projection")(masked_mean(local, mask))
        keys = Linear(features, name="local_projection")(local)
        if self.normalise:
            keys = BatchNorm(1, self.axis_name, name="local_norm")(keys, train, mask[..., None])
            queries = BatchNorm(1, self.axis_name, name="global_norm")(queries, train)
        keys = Dropout(self.dropout, self.axis_name)(nn.tanh(keys), train)
        queries = Dropout(self.dropout, self.axis_name)(nn.tanh(queries), train)
        logits = Linear(1, name="common")(keys * queries[:, None, :])[..., 0]
        weights = jax.nn.softmax(logits, axis=1, where=mask > 0)
        return l2_normalise(jnp.einsum("nk,nkd->nd", weights, local))


class ImageEncoder(nn.Module):
    """Encoder of region features `[I, R, Dv]` with region counts `[I]`.

    Attributes:
      overall: also make the global vectors, `ImageCode.overall`.
      products: also make the inner products of regions, `ImageCode.products`.
    """

    embed_dim: int
    dropout: float
    axis_name: str | None = None
    overall: bool = True
    products: bool = False

    @nn.compact
    def __call__(
        self, images: Float[Array, "I R Dv"], counts: Int[Array, " I"], train: bool
    ) -> ImageCode:
        is_region = jnp.arange(images.shape[1])[None] < counts[:, None]
        mask = is_region.astype(jnp.float32)
        # Padding is masked before the projection, so that NaN there cannot reach the gradient, and
        # after it, because the bias makes a nonzero vector of zero features.
        images = jnp.where(is_region[..., None], images, 0.0)
        encoder = RegionEncoder(self.embed_dim, normalise=False, name="regions")
        raw = encoder(images) * mask[..., None]
        regions, overall = l2_normalise(raw), None
        if self.overall:
            attention = SelfAttention(self.dropout, True, self.axis_name, name="attention")
            overall = attention(regions, mask, train)
        products = region_products(regions) if self.products else None
        return ImageCode(regions, mask, overall, l2_norm(raw), products)


def region_products(regions: Float[Array, "I R D"]) -> Float[Array, "I R R"]:
    """Inner products of the regions of each image, in full float32 precision."""
    return jnp.einsum("ird,isd->irs", regions, regions, precision=jax.lax.Precision.HIGHEST)


class TextEncoder(nn.Module):
    """Encoder of token ids `[J, L]` with caption lengths `[J]`.

    Attributes:
      overall: also make the global vectors, `TextCode.overall`.
    """

    vocabulary_size: int
    word_dim: int
    embed_dim: int
    dropout: float
    axis_name: str | None = None
    overall: bool = True

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "J L"], lengths: Int[Array, " J"], train: bool
    ) -> TextCode:
        mask = (jnp.arange(tokens.shape[1])[None] < lengths[:, None]).astype(jnp.float32)
        encoder = WordEncoder(
            self.vocabulary_size,
            self.word_dim,
            self.embed_dim,
            self.dropout,
            self.axis_name,
            normalise=False,
            name="words",
        )
        raw = encoder(tokens, mask, train)
        words, overall = l2_normalise(raw), None
        if self.overall:
            attention = SelfAttention(self.dropout, False, self.axis_name, name="attention")
            overall = attention(words, mask, train)
        return TextCode(words, mask, overall, norms=l2_norm(raw))


class VectorTextEncoder(nn.Module):
    """Encoder of captions given as vectors `[J, L, Dt]`, with lengths `[J]`; a vector is a word.

    A linear layer replaces the word embedding and the GRU of `TextEncoder`. A caption given as one
    vector is a caption of one word, and that word vector is also its global vector.

    Attributes:
      overall: also make the global vectors, `TextCode.overall`.
    """

    embed_dim: int
    dropout: float
    axis_name: str | None = None
    overall: bool = True

    @nn.compact
    def __call__(
        self, vectors: Float[Array, "J L Dt"], lengths: Int[Array, " J"], train: bool
    ) -> TextCode:
        mask = (jnp.arange(vectors.shape[1])[None] < lengths[:, None]).astype(jnp.float32)
        raw = RegionEncoder(self.embed_dim, normalise=False, name="words")(vectors)
        raw, overall = raw * mask[..., None], None
        words = l2_normalise(raw)
        if self.overall:
            attention = SelfAttention(self.dropout, False, self.axis_name, name="attention")
            overall = attention(words, mask, train)
        return TextCode(words, mask, overall, norms=l2_norm(raw))
