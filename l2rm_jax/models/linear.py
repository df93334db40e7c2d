"""Linear: map fixed features to one vector per image and caption, and compare them by cosine.

The linear detector (`l2rm_jax/linear`) uses the same features: pooled regions, weighted word
counts, or given vectors. `methods/closed_form.py` fits features and maps to the training pairs;
all methods except `cca` start from such a fit. Statistics of the features are in the collection
`batch_stats`, as gradients do not change them; the maps are parameters.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.linear import set_features, word_features
from l2rm_jax.linear.cca import COMPONENTS
from l2rm_jax.linear.set_features import Pooling, may_be_grid, pooled_size, pooled_vectors
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import register_head
from l2rm_jax.models.layers import Dropout, l2_norm, l2_normalise
from l2rm_jax.models.vse import VSE

_unit_variance = nn.initializers.variance_scaling(1.0, "fan_in", "normal")


class Linear(VSE):
    """Cosine of the mapped features of every image and every caption, in [-1, 1]."""

    needs_all_regions: ClassVar = True  # means of quadrants depend on the positions of regions

    @classmethod
    def make_encoders(
        cls, sizes, vocabulary_size: int, axis_name: str | None
    ) -> tuple[nn.Module, nn.Module]:
        """Make encoders whose codes hold one region and one word: the mapped features."""
        shared = (sizes.dropout, axis_name)
        texts = (
            LinearWords(*shared, vocabulary_size=vocabulary_size)
            if vocabulary_size
            else LinearVectors(*shared)
        )
        return LinearImages(*shared), texts


register_head("linear", lambda config: Linear("mean"))


class _LinearEncoder(nn.Module):
    """Base of the encoders: features, standardised as a whole, with dropout, and mapped."""

    dropout: float
    axis_name: str | None = None

    def code(self, make: Callable, vectors: Float[Array, "n d"], train: bool) -> Any:
        """Map the features to a code of one vector; called once, in a compact method."""
        size = vectors.shape[1]
        center = _statistic(self, "feature_center", nn.initializers.zeros, (size,))
        scale = _statistic(self, "feature_scale", nn.initializers.ones, ())
        vectors = Dropout(self.dropout, self.axis_name)((vectors - center[None]) * scale, train)
        mapped = (vectors @ self.param("map", _unit_variance, (size, COMPONENTS)))[:, None]
        return make(l2_normalise(mapped), jnp.ones(mapped.shape[:2]), norms=l2_norm(mapped))


class LinearImages(_LinearEncoder):
    """Map of pooled regions, or of single vectors: `[I, R, Dv]` to a code of one region."""

    @nn.compact
    def __call__(
        self, images: Float[Array, "I R Dv"], regions: Int[Array, " I"], train: bool
    ) -> ImageCode:
        return self.code(ImageCode, _pooled(self, images, regions), train)


class LinearVectors(_LinearEncoder):
    """Map of captions that are given as vectors: `[J, L, Dt]` to a code of one word."""

    @nn.compact
    def __call__(
        self, vectors: Float[Array, "J L Dt"], lengths: Int[Array, " J"], train: bool
    ) -> TextCode:
        return self.code(TextCode, _pooled(self, vectors, lengths), train)


class LinearWords(_LinearEncoder, kw_only=True):
    """Map of weighted counts of words: `[J, L]` word numbers to a code of one word."""

    vocabulary_size: int

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "J L"], lengths: Int[Array, " J"], train: bool
    ) -> TextCode:
        size, dimensions = self.vocabulary_size, word_features.DIMENSIONS
        rarity = _statistic(self, "feature_rarity", nn.initializers.ones, (size,))
        directions = _statistic(self, "feature_directions", _unit_variance, (size, dimensions))
        words = _weighted_words(tokens, lengths, rarity, directions)
        return self.code(TextCode, words, train)


def _pooled(
    module: nn.Module, sets: Float[Array, "n R d"], sizes: Int[Array, " n"]
) -> Float[Array, "n dimensions"]:
    """One vector per set, as in `data.vectors`: its only vector, or the pooled vectors."""
    if sets.shape[1] == 1:
        return sets[:, 0]
    d, words = sets.shape[2], set_features.VISUAL_WORDS
    numbers = pooled_size(d, words, with_quadrants=may_be_grid(sets.shape[1]))
    dimensions = min(set_features.DIMENSIONS, numbers)
    pooling = Pooling(
        words=_statistic(module, "feature_words", nn.initializers.normal(1.0), (words, d)),
        width=_statistic(module, "feature_width", nn.initializers.ones, ()),
        mean=_statistic(module, "feature_mean", nn.initializers.zeros, (numbers,)),
        rotation=_statistic(module, "feature_rotation", _unit_variance, (numbers, dimensions)),
    )
    return pooled_vectors(sets, sizes, pooling)


def _weighted_words(
    tokens: Int[Array, "J L"],
    lengths: Int[Array, " J"],
    rarity: Float[Array, " words"],
    directions: Float[Array, "words dimensions"],
) -> Float[Array, "J dimensions"]:
    """Compute the vectors of `word_features` without a count for every word of the vocabulary.

    A word that occurs c times in a caption has the weight sqrt(c) * rarity, so each occurrence
    contributes rarity / sqrt(c). The squared norm of the caption is the sum of rarity ** 2 over its
    words, repetitions included.
    """
    real = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
    same = (tokens[:, :, None] == tokens[:, None]) & real[:, None]
    counts = jnp.maximum(jnp.sum(same, axis=2), 1)
    weights = jnp.where(real, rarity[tokens], 0.0)
    norm = jnp.sqrt(jnp.sum(weights**2, axis=1, keepdims=True))
    weights = weights / jnp.sqrt(counts) / jnp.maximum(norm, 1e-12)
    return jnp.einsum("jl,jld->jd", weights, directions[tokens])


def _statistic(
    module: nn.Module, name: str, init: Callable, shape: tuple[int, ...]
) -> Float[Array, "..."]:
    """Create an array that gradients do not change; random before a fit."""
    make = lambda: init(module.make_rng("params"), shape)  # noqa: E731
    return jax.lax.stop_gradient(module.variable("batch_stats", name, make).value)
