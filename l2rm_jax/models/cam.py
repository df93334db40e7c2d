"""CAM: compare each word with the regions that it attends to (Lee et al., SCAN, ECCV 2018).

OMIT compares with it, in its own form and with a dustbin for partial matching (OMIT Tab. 4).
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
    """Similarity of every image with every caption: the mean of `word_similarities` over words.

    Attributes:
      matching: "naive" is SCAN, text to image. With "partial", words can also attend to the image's
        mean vector, the dustbin, whose contribution does not count.
    """

    choices: ClassVar = {"matching": MATCHINGS}
    needs_region_products = True

    matching: str

    @nn.compact
    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        score = partial(_score, self.matching == "partial")
        sparse = self.sparse_gradient
        return map_captions(score, (), images, texts, self.chunk, sparse, vectors=False).T


register_head("cam", lambda config: CAM(config.model.matching))


def word_similarities(
    cosines: Float[Array, "I R C L"],
    products: Float[Array, "I R R"],
    mask: Float[Array, "I R"],
    word_mask: Float[Array, "C L"],
    dustbin: bool,
) -> Float[Array, "I C L"]:
    """Cosine of each word with the mixture of regions that the word attends to.

    With `dustbin`, the image's mean vector takes part in the mixture, but its contribution to the
    inner product is left out. Values at padded words are finite and meaningless.

    The mixtures and the mean vector are never computed: a cosine with the mean is a mean of
    cosines, the weight of the mean is added to the weight of each region, and `mixture_norms` needs
    only the `products` of the regions.
    """
    weights = region_weights(cosines, mask, word_mask)
    inner_products = jnp.sum(weights * cosines, axis=1)
    if dustbin:
        shares = (mask / jnp.sum(mask, axis=1, keepdims=True))[..., None, None]
        mean_cosine = jnp.sum(shares * cosines, axis=1, keepdims=True)
        weights += shares * region_weights(mean_cosine, jnp.ones_like(mask[:, :1]), word_mask)
    return inner_products / (mixture_norms(weights, products) + 1e-8)


def _score(dustbin: bool, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I"]:
    cosines = region_word_cosines(images, texts)
    sims = word_similarities(cosines, images.products, images.mask, texts.mask, dustbin)
    shares = texts.mask / jnp.sum(texts.mask, axis=1, keepdims=True)
    return jnp.einsum("icl,cl->ci", sims, shares)
