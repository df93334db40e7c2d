"""Image and text encoders: what an image or a caption is before it meets the other modality."""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.layers import BatchNorm, Dropout, Linear, l2_normalise, masked_mean


@flax.struct.dataclass
class ImageCode:
    """Unit region vectors `[I, R, D]` (zero past the last region), their mask `[I, R]` (1 = a
    region) and one unit global vector `[I, D]` per image."""

    regions: Float[Array, "I R D"]
    mask: Float[Array, "I R"]
    overall: Float[Array, "I D"]


@flax.struct.dataclass
class TextCode:
    """Unit word vectors `[J, L, D]` (zero past the end), their mask `[J, L]` (1 = a word) and one
    unit global vector `[J, D]` per caption."""

    words: Float[Array, "J L D"]
    mask: Float[Array, "J L"]
    overall: Float[Array, "J D"]


class RegionEncoder(nn.Module):
    """One linear layer and unit length: `[I, R, Dv] -> [I, R, D]`."""

    embed_dim: int

    @nn.compact
    def __call__(self, images: Float[Array, "I R Dv"]) -> Float[Array, "I R D"]:
        return l2_normalise(Linear(self.embed_dim, name="projection")(images))


def _uniform(bound: float):
    return lambda key, shape: jax.random.uniform(key, shape, jnp.float32, -bound, bound)


class GRU(nn.Module):
    """One direction of a GRU over padded sequences, `[J, L, E] -> [J, L, H]`, zero past the end.

    The input projection of all steps is one matrix product outside the scan. Gates are ordered
    reset, update, new; both bias vectors of the reference are kept, because under Adam two biases
    that only ever appear as a sum move twice as far as one.
    """

    hidden: int
    reverse: bool = False

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "J L E"], mask: Float[Array, "J L"]
    ) -> Float[Array, "J L H"]:
        init = _uniform(self.hidden**-0.5)
        gates = 3 * self.hidden
        input_kernel = self.param("input_kernel", init, (inputs.shape[-1], gates))
        input_bias = self.param("input_bias", init, (gates,))
        hidden_kernel = self.param("hidden_kernel", init, (self.hidden, gates))
        hidden_bias = self.param("hidden_bias", init, (gates,))

        def step(state, xs):
            projected, valid = xs
            recurrent = state @ hidden_kernel + hidden_bias
            x_reset, x_update, x_new = jnp.split(projected, 3, axis=-1)
            h_reset, h_update, h_new = jnp.split(recurrent, 3, axis=-1)
            reset = nn.sigmoid(x_reset + h_reset)
            update = nn.sigmoid(x_update + h_update)
            new = nn.tanh(x_new + reset * h_new)
            # A padded step leaves the state alone. Run backwards, padding comes first and the
            # state is still zero when the last word is reached.
            state = jnp.where(valid[:, None] > 0, (1.0 - update) * new + update * state, state)
            return state, state

        projected = inputs @ input_kernel + input_bias
        start = jnp.zeros((inputs.shape[0], self.hidden), projected.dtype)
        by_step = (jnp.swapaxes(projected, 0, 1), mask.T)
        _, states = jax.lax.scan(step, start, by_step, reverse=self.reverse)
        return jnp.swapaxes(states, 0, 1) * mask[..., None]


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
        table = self.param("embedding", _uniform(0.1), (self.vocabulary_size, self.word_dim))
        inputs = Dropout(self.dropout, self.axis_name)(table[tokens], train)
        forward = GRU(self.embed_dim, name="forward")(inputs, mask)
        backward = GRU(self.embed_dim, reverse=True, name="backward")(inputs, mask)
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
    """Region features `[I, R, Dv]` and region counts `[I]` to `ImageCode`."""

    embed_dim: int
    dropout: float
    axis_name: str | None = None

    @nn.compact
    def __call__(
        self, images: Float[Array, "I R Dv"], counts: Int[Array, " I"], train: bool
    ) -> ImageCode:
        real = jnp.arange(images.shape[1]) < counts[:, None]
        mask = real.astype(jnp.float32)
        # A bias makes something of zero features too, hence the mask after the projection; the one
        # before it keeps even NaN out of the gradient.
        images = jnp.where(real[..., None], images, 0.0)
        regions = RegionEncoder(self.embed_dim, name="regions")(images) * mask[..., None]
        attention = SelfAttention(self.dropout, True, self.axis_name, name="attention")
        return ImageCode(regions=regions, mask=mask, overall=attention(regions, mask, train))


class TextEncoder(nn.Module):
    """Token ids `[J, L]` and lengths `[J]` to `TextCode`."""

    vocabulary_size: int
    word_dim: int
    embed_dim: int
    dropout: float
    axis_name: str | None = None

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
            name="words",
        )
        words = encoder(tokens, mask, train)
        attention = SelfAttention(self.dropout, False, self.axis_name, name="attention")
        return TextCode(words=words, mask=mask, overall=attention(words, mask, train))
