"""CAM: compare each word with the regions that it attends to (Lee et al., SCAN, ECCV 2018).

OMIT compares with it, in its own form and with a dustbin for partial matching (OMIT Tab. 4).
"""

from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.attention import (
    align_regions,
    mixture_norms,
    region_weights,
    region_word_cosines,
)
from l2rm_jax.models.chunks import map_captions, pairwise
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

    def alignment(self, images: ImageCode, texts: TextCode) -> Float[Array, "P R L"]:
        """Attention of each word, divided by the number of words; see `SimilarityHead`.

        The weights of a pair sum to 1; with `matching="partial"` to less, as dustbins attract some.
        """
        return pairwise(partial(_align, self.matching == "partial"))((), images, texts)


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
    weights, mixture = _attend(cosines, mask, word_mask, dustbin)
    inner_products = jnp.sum(weights * cosines, axis=1)
    return inner_products / (mixture_norms(mixture, products) + 1e-8)


def _attend(
    cosines: Float[Array, "I R C L"],
    mask: Float[Array, "I R"],
    word_mask: Float[Array, "C L"],
    dustbin: bool,
) -> tuple[Float[Array, "I R C L"], Float[Array, "I R C L"]]:
    """Attention to the regions, without and with the part that comes through the dustbin."""
    weights = region_weights(cosines, mask, word_mask)
    if not dustbin:
        return weights, weights
    shares = (mask / jnp.sum(mask, axis=1, keepdims=True))[..., None, None]
    mean_cosine = jnp.sum(shares * cosines, axis=1, keepdims=True)
    mean_weight = region_weights(mean_cosine, jnp.ones_like(mask[:, :1]), word_mask)
    return weights, weights + shares * mean_weight


def _score(dustbin: bool, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I"]:
    cosines = region_word_cosines(images, texts)
    sims = word_similarities(cosines, images.products, images.mask, texts.mask, dustbin)
    return jnp.einsum("icl,cl->ci", sims, _word_shares(texts))


def _align(dustbin: bool, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I R L"]:
    cosines = region_word_cosines(images, texts)
    weights, mixture = _attend(cosines, images.mask, texts.mask, dustbin)
    without_dustbin = jnp.sum(weights, axis=1) / jnp.sum(mixture, axis=1)
    return align_regions(weights, without_dustbin * _word_shares(texts))


def _word_shares(texts: TextCode) -> Float[Array, "C L"]:
    return texts.mask / jnp.sum(texts.mask, axis=1, keepdims=True)
