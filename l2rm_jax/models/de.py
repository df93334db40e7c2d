"""DE: videos and sentences at three levels, one vector each, compared by their cosine.

Dong et al., "Dual Encoding for Zero-Example Video Retrieval", CVPR 2019, as its public code
computes it (danieljf24/dual_encoding). RCL (Tab. 3) trains it on noisy pairs.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.gru import bidirectional_gru
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import (
    BatchNorm,
    Dropout,
    Linear,
    add_bias,
    l2_normalise,
    masked_mean,
    uniform_init,
)

FRAME_WIDTHS, WORD_WIDTHS = (2, 3, 4, 5), (2, 3, 4)  # of the convolutions


class DualEncoding(SimilarityHead):
    """Cosine of every video vector with every sentence vector, in [-1, 1].

    Frames are the regions of an image; a sentence is a caption. The codes hold only the vectors, as
    one region and one word.

    Attributes:
      settings: the config's section `de`.
    """

    needs_all_regions = True

    settings: Any

    # A class method in other heads; here the encoders need the settings of the head.
    @nn.nowrap
    def make_encoders(
        self, sizes: Any, vocabulary_size: int, axis_name: str | None
    ) -> tuple[nn.Module, nn.Module]:
        """Make the encoders; `model.embed_dim` is the size of the common space."""
        de = self.settings
        shared = (de.filters, sizes.embed_dim, sizes.dropout, de.packed, axis_name)
        frames = Levels(de.image_gru, FRAME_WIDTHS, *shared, parent=None)
        words = Levels(de.text_gru, WORD_WIDTHS, *shared, words=True, parent=None)
        return VideoEncoder(frames), SentenceEncoder(vocabulary_size, sizes.word_dim, words)

    def embed_images(self, images: ImageCode) -> Float[Array, "I D"]:
        """Unit vectors of the videos."""
        return images.overall

    def embed_texts(self, texts: TextCode) -> Float[Array, "J D"]:
        """Unit vectors of the sentences."""
        return texts.overall

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        return self.embed_images(images) @ self.embed_texts(texts).T


register_head("de", lambda config: DualEncoding(settings=config.de))


class Levels(nn.Module):
    """Unit vector of a sequence from three levels: the whole, a GRU, convolutions over its states.

    The vector is a batch-normalised linear map of the mean state of the GRU, the largest value of
    each filter, and the given first level, in this order.

    The GRU of frames is not packed in the code: its backward direction starts in the padding, and
    filters see windows of padding, where they are their bias. `packed` switches both off.

    Attributes:
      gru: size of the GRU, per direction.
      widths: widths of the convolutions.
      filters: number of filters of each width.
      embed_dim: size of the vector.
      dropout: of the mean state, of the filters and of the vector.
      packed: whether padding changes nothing.
      axis_name: mapped axis of the devices, or None.
      words: whether the GRU is packed in any case, as for words.
    """

    gru: int
    widths: tuple[int, ...]
    filters: int
    embed_dim: int
    dropout: float
    packed: bool = True
    axis_name: str | None = None
    words: bool = False

    @nn.compact
    def __call__(
        self,
        inputs: Float[Array, "N T E"],
        mask: Float[Array, "N T"],
        first_level: Float[Array, "N F"],
        train: bool,
    ) -> Float[Array, "N D"]:
        visible = mask if self.packed or self.words else jnp.ones_like(mask)
        states = jnp.concatenate(bidirectional_gru(inputs, visible, self.gru), axis=2)
        states *= mask[..., None]
        level2 = Dropout(self.dropout, self.axis_name)(masked_mean(states, mask), train)
        level3 = jnp.concatenate([self._filter(states, mask, w) for w in self.widths], axis=1)
        level3 = Dropout(self.dropout, self.axis_name)(level3, train)
        joined = jnp.concatenate([level2, level3, first_level], axis=1)
        vector = Linear(self.embed_dim, name="mapping")(joined)
        vector = BatchNorm(1, self.axis_name, name="norm")(vector, train)
        return l2_normalise(Dropout(self.dropout, self.axis_name)(vector, train))

    def _filter(
        self, states: Float[Array, "N T H"], mask: Float[Array, "N T"], width: int
    ) -> Float[Array, "N F"]:
        """Largest value of each filter of this width, after a ReLU."""
        init = uniform_init((width * states.shape[2]) ** -0.5)
        shape = (width, states.shape[2], self.filters)
        kernel = self.param(f"kernel_{width}", init, shape)
        bias = self.param(f"bias_{width}", init, (self.filters,))
        # One product per position in the window: on a CPU, the gradient of XLA's convolution takes
        # forty times as long.
        padded = jnp.pad(states, ((0, 0), (width - 1, width - 1), (0, 0)))
        windows = states.shape[1] + width - 1
        values = sum(padded[:, k : k + windows] @ kernel[k] for k in range(width))
        values = nn.relu(add_bias(values, bias))
        if self.packed:  # only windows with an entry of the sequence count
            ends = jnp.sum(mask, axis=1, keepdims=True) + width - 1
            counts = jnp.arange(values.shape[1], dtype=mask.dtype)[None] < ends
            values = jnp.where(counts[..., None], values, 0.0)
        return jnp.max(values, axis=1)


class VideoEncoder(nn.Module):
    """Encoder of frames `[I, R, Dv]` with their counts `[I]`; the first level is their mean."""

    levels: Levels

    def __call__(
        self, images: Float[Array, "I R Dv"], counts: Int[Array, " I"], train: bool
    ) -> ImageCode:
        is_frame = jnp.arange(images.shape[1])[None] < counts[:, None]
        mask = is_frame.astype(jnp.float32)
        # NaN in the padding must not reach the gradient.
        frames = jnp.where(is_frame[..., None], images, 0.0)
        vectors = self.levels(frames, mask, masked_mean(frames, mask), train)
        return ImageCode(vectors[:, None], jnp.ones((len(vectors), 1)), vectors)


class SentenceEncoder(nn.Module):
    """Encoder of token ids `[J, L]`, or of vectors `[J, L, Dt]` instead of words.

    Caption lengths are `[J]`. The first level counts the words of the vocabulary; for vectors it is
    their mean.
    """

    vocabulary_size: int
    word_dim: int
    levels: Levels

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "J L"] | Float[Array, "J L Dt"],
        lengths: Int[Array, " J"],
        train: bool,
    ) -> TextCode:
        mask = (jnp.arange(tokens.shape[1])[None] < lengths[:, None]).astype(jnp.float32)
        if self.vocabulary_size:
            init = uniform_init(1.0)
            table = self.param("embedding", init, (self.vocabulary_size, self.word_dim))
            inputs = table[tokens]
            rows = jnp.arange(len(tokens))[:, None]
            counts = jnp.zeros((len(tokens), self.vocabulary_size))
            first_level = counts.at[rows, tokens].add(mask)
        else:
            inputs = tokens * mask[..., None]
            first_level = masked_mean(inputs, mask)
        vectors = self.levels(inputs, mask, first_level, train)
        return TextCode(vectors[:, None], jnp.ones((len(vectors), 1)), vectors)
