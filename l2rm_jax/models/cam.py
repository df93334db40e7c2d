"""CAM: words are answered by the regions they attend to (Lee et al., SCAN, ECCV 2018).

The rival that OMIT compares with, and what its partial matching makes of it (Tab. 4).
"""

from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.attention import mixture_norms, region_weights, region_word_cosines
from l2rm_jax.models.chunks import map_captions
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import SimilarityHead, register_head

MATCHINGS = ("partial", "naive")


class CAM(SimilarityHead):
    """Similarity of every image with every caption: mean cosine of a word and what it attends to.

    Attributes:
      matching: "naive" is SCAN, text to image. With "partial" the image's mean vector can be
        attended to like a region, and what it answers does not count.
    """

    choices: ClassVar = {"matching": MATCHINGS}
    needs_region_products = True

    matching: str

    @nn.compact
    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        stages = (region_word_cosines, partial(_score, self.matching == "partial"))
        return map_captions(
            stages, (), images, texts, self.chunk, self.sparse_gradient, vectors=False
        ).T


register_head("cam", lambda config: CAM(config.model.matching))


def word_similarities(
    cosines: Float[Array, "I R C L"],
    products: Float[Array, "I R R"],
    mask: Float[Array, "I R"],
    word_mask: Float[Array, "C L"],
    dustbin: bool,
) -> Float[Array, "I C L"]:
    """Cosine of each word with the mixture of regions that it attends to, without what the dustbin
    contributes; finite and meaningless at padded words.

    Neither the mixtures nor the mean vector are made: cosines of the mean are means of cosines, its
    weight is one more share of each region's, and `mixture_norms` takes `products`.
    """
    weights = region_weights(cosines, mask, word_mask)
    answer = jnp.sum(weights * cosines, axis=1)
    if dustbin:
        shares = (mask / jnp.sum(mask, axis=1, keepdims=True))[..., None, None]
        of_mean = jnp.sum(shares * cosines, axis=1, keepdims=True)
        weights += shares * region_weights(of_mean, jnp.ones_like(mask[:, :1]), word_mask)
    return answer / (mixture_norms(weights, products) + 1e-8)


def _score(
    dustbin: bool, _, images: ImageCode, texts: TextCode, cosines: Float[Array, "I R C L"]
) -> Float[Array, "C I"]:
    sims = word_similarities(cosines, images.products, images.mask, texts.mask, dustbin)
    shares = texts.mask / jnp.sum(texts.mask, axis=1, keepdims=True)
    return jnp.einsum("icl,cl->ci", sims, shares)
