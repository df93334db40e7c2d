"""IMRAM: attend to the regions in rounds, and refine the queries of the words after each round.

Chen et al., "IMRAM: Iterative Matching with Recurrent Attention Memory for Cross-Modal Image-Text
Retrieval", CVPR 2020, in its text direction ("text-IMRAM"), as its public code computes it
(HuiChen24/IMRAM, `model.py`: `xattn_score_Text_IMRAM`, `gated_memory_t2i`).
"""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.attention import (
    align_regions,
    mix_regions,
    mixture_norms,
    region_weights,
    region_word_cosines,
    shares,
)
from l2rm_jax.models.chunks import keep_for_backward, map_captions, pairwise
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import linear, uniform_init


class IMRAM(SimilarityHead):
    """Similarity of every image with every caption: the sum of the scores of all rounds.

    Round k has a query for each word of a caption in an image; in the first round, it is the word.
    Queries attend to the regions as in CAM, and the score of a round is CAM's: the mean cosine
    between each word and the vector that its query attends to. The words are compared, not the
    queries. Between two rounds, a gate mixes each query q with its attended vector a, which does
    not have unit length:

      gate = sigmoid(W [q, a] + b),   q <- gate * q + (1 - gate) * tanh(V [q, a] + c)

    All rounds share W, b, V, c. As in the public code's scripts (`--no_IMRAM_norm`), queries are
    not scaled to unit length. Similarities lie in [-rounds, rounds].

    Attributes:
      rounds: K in the paper, at least 2.
      smoothing: inverse temperature of the attention over regions.
    """

    needs_region_products = True

    rounds: int
    smoothing: float

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        params, images = self._project(images)
        score = partial(_score, self.rounds, self.smoothing)
        return map_captions(score, params, images, texts, self.chunk, self.sparse_gradient).T

    def bounded(self, sims: Float[Array, "..."]) -> Float[Array, "..."]:
        """Mean over the rounds, in [-1, 1]."""
        return sims / self.rounds

    def alignment(self, images: ImageCode, texts: TextCode) -> Float[Array, "P R L"]:
        """Attention of each word, averaged over the rounds and divided by the number of words.

        The weights of a pair sum to 1; see `SimilarityHead`.
        """
        align = partial(_align, self.rounds, self.smoothing)
        return pairwise(align)(*self._project(images), texts)

    @nn.compact
    def _project(self, images: ImageCode) -> tuple[dict, ImageCode]:
        """Parameters of the queries' projections, and images whose regions carry projections.

        W and V are linear, so the projection of an attended vector is the mixture of the regions'
        projections. The regions, `[I, R, D]`, are therefore projected once, and attended vectors
        never. The first D numbers of a region are the region, the others its projections by W and
        V.
        """
        size = images.regions.shape[-1]
        layers = [self.param(name, _layer_init, size) for name in ("gate", "update")]
        params = jax.tree.map(lambda *x: jnp.concatenate(x, axis=-1), *layers)
        of_query, of_attended = jnp.split(params["kernel"], 2)
        regions = [images.regions, images.regions @ of_attended]
        images = images.replace(regions=jnp.concatenate(regions, axis=-1))
        return {"kernel": of_query, "bias": params["bias"]}, images


register_head("imram", lambda config: IMRAM(config.imram.rounds, config.imram.smoothing))


def _layer_init(key: Array, size: int) -> dict[str, Array]:
    """Parameters of a linear layer from 2D numbers to D, with PyTorch's initialisation."""
    init = uniform_init((2 * size) ** -0.5)
    kernel, bias = jax.random.split(key)
    return {"kernel": init(kernel, (2 * size, size)), "bias": init(bias, (size,))}


def _score(
    rounds: int, smoothing: float, params: dict, images: ImageCode, texts: TextCode
) -> Float[Array, "C I"]:
    cosines, attention = _attend(rounds, smoothing, params, images, texts)

    def word_similarities(weights: Float[Array, "I R C L"]) -> Float[Array, "I C L"]:
        norms = mixture_norms(weights, images.products)
        return jnp.sum(weights * cosines, axis=1) / (norms + 1e-8)

    sims = sum(map(word_similarities, attention))
    return jnp.einsum("icl,cl->ci", sims, shares(texts.mask))


def _align(
    rounds: int, smoothing: float, params: dict, images: ImageCode, texts: TextCode
) -> Float[Array, "C I R L"]:
    _, attention = _attend(rounds, smoothing, params, images, texts)
    return align_regions(sum(attention), shares(texts.mask)[None])


def _attend(
    rounds: int, smoothing: float, params: dict, images: ImageCode, texts: TextCode
) -> tuple[Float[Array, "I R C L"], list[Float[Array, "I R C L"]]]:
    """Cosines of regions and words, and the attention of each round, with a sum of 1 over regions.

    Attention at padded words is finite and meaningless.
    """
    regions, projected = jnp.split(images.regions, [texts.words.shape[-1]], axis=-1)
    cosines = region_word_cosines(images.replace(regions=regions), texts)
    products, queries, attention = cosines, texts.words[None], []
    for k in range(rounds):
        if k > 0:
            queries = _remember(params, queries, mix_regions(attention[-1], projected), texts)
            products = jnp.einsum("ird,icld->ircl", regions, queries)
            products = keep_for_backward(products, 3, texts)
        weights = region_weights(products, images.mask, texts.mask, smoothing)
        attention.append(weights / jnp.sum(weights, axis=1, keepdims=True))
    return cosines, attention


def _remember(
    params: dict,
    queries: Float[Array, "#I C L D"],
    attended: Float[Array, "I C L 2*D"],
    texts: TextCode,
) -> Float[Array, "I C L D"]:
    """Compute the queries of the next round from the projections of the attended vectors."""
    projected = keep_for_backward(linear(params, queries), 2, texts)
    gate, update = jnp.split(projected + attended, 2, axis=-1)
    gate = jax.nn.sigmoid(gate)
    return gate * queries + (1 - gate) * jnp.tanh(update)
