"""Image and text encoders: what an image or a caption is before it meets the other modality."""

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
    """Unit region vectors `[I, R, D]` (zero past the last region), their mask `[I, R]` (1 = a
    region), one unit global vector `[I, D]` per image where the head uses it, the norms `[I, R]`
    that the regions had before, and their products with each other `[I, R, R]`, in full precision,
    where the head uses them."""

    regions: Float[Array, "I R D"]
    mask: Float[Array, "I R"]
    overall: Float[Array, "I D"] | None = None
    norms: Float[Array, "I R"] | None = None
    products: Float[Array, "I R R"] | None = None


@flax.struct.dataclass
class TextCode:
    """Unit word vectors `[J, L, D]` (zero past the end), their mask `[J, L]` (1 = a word), one
    unit global vector `[J, D]` per caption where the head uses it, and the norms `[J, L]` that the
    words had before."""

    words: Float[Array, "J L D"]
    mask: Float[Array, "J L"]
    overall: Float[Array, "J D"] | None = None
    norms: Float[Array, "J L"] | None = None

    def cut(self, length: int) -> "TextCode":
        """Without what comes after so many words of a caption."""
        norms = None if self.norms is None else self.norms[:, :length]
        return self.replace(words=self.words[:, :length], mask=self.mask[:, :length], norms=norms)


class RegionEncoder(nn.Module):
    """One linear layer, and unit length if `normalise`: `[I, R, Dv] -> [I, R, D]`.

    Of captions' vectors too.
    """

    embed_dim: int
    normalise: bool = True

    @nn.compact
    def __call__(self, images: Float[Array, "I R Dv"]) -> Float[Array, "I R D"]:
        regions = Linear(self.embed_dim, name="projection")(images)
        return l2_normalise(regions) if self.normalise else regions


class WordEncoder(nn.Module):
    """Word embedding and bidirectional GRU, mean of both directions, of unit length if `normalise`:
    `[J, L] -> [J, L, D]`, zero past the end."""

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
    """One global vector from the local ones, weighted by their agreement with their mean.

    `[N, K, D], mask [N, K] -> [N, D]`. With `normalise`, batch normalisation follows both
    projections (the image side of SGRAF; its local one has a channel per region).
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
    """Region features `[I, R, Dv]` and region counts `[I]` to `ImageCode`; `overall` asks for the
    global vectors, `products` for those of regions with each other."""

    embed_dim: int
    dropout: float
    axis_name: str | None = None
    overall: bool = True
    products: bool = False

    @nn.compact
    def __call__(
        self, images: Float[Array, "I R Dv"], counts: Int[Array, " I"], train: bool
    ) -> ImageCode:
        real = jnp.arange(images.shape[1]) < counts[:, None]
        mask = real.astype(jnp.float32)
        # A bias makes something of zero features too, hence the mask after the projection; the one
        # before it keeps even NaN out of the gradient.
        images = jnp.where(real[..., None], images, 0.0)
        encoder = RegionEncoder(self.embed_dim, normalise=False, name="regions")
        raw = encoder(images) * mask[..., None]
        regions, overall = l2_normalise(raw), None
        if self.overall:
            attention = SelfAttention(self.dropout, True, self.axis_name, name="attention")
            overall = attention(regions, mask, train)
        products = region_products(regions) if self.products else None
        return ImageCode(regions, mask, overall, l2_norm(raw), products)


def region_products(regions: Float[Array, "I R D"]) -> Float[Array, "I R R"]:
    """Of the regions of each image with each other, in full precision."""
    return jnp.einsum("ird,isd->irs", regions, regions, precision=jax.lax.Precision.HIGHEST)


class TextEncoder(nn.Module):
    """Token ids `[J, L]` and lengths `[J]` to `TextCode`; `overall` asks for the global vectors."""

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
        mask = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.float32)
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
    """Captions given by vectors `[J, L, Dt]`, lengths `[J]`, to `TextCode`: each vector is a word.

    A linear layer stands for the embedding and the GRU of `TextEncoder`; one vector for a whole
    caption is a caption of one word, and then the global vector too.
    """

    embed_dim: int
    dropout: float
    axis_name: str | None = None
    overall: bool = True

    @nn.compact
    def __call__(
        self, vectors: Float[Array, "J L Dt"], lengths: Int[Array, " J"], train: bool
    ) -> TextCode:
        mask = (jnp.arange(vectors.shape[1]) < lengths[:, None]).astype(jnp.float32)
        raw = RegionEncoder(self.embed_dim, normalise=False, name="words")(vectors)
        raw, overall = raw * mask[..., None], None
        words = l2_normalise(raw)
        if self.overall:
            attention = SelfAttention(self.dropout, False, self.axis_name, name="attention")
            overall = attention(words, mask, train)
        return TextCode(words, mask, overall, norms=l2_norm(raw))
