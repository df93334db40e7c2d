"""CAM: compare each word with the regions that it attends to (Lee et al., SCAN, ECCV 2018).

In the other direction, it compares each region with the words that it attends to. OMIT compares
with CAM in its own form and with a dustbin for partial matching (OMIT Tab. 4).
"""

from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.attention import (
    SMOOTHING,
    align_regions,
    mixture_norms,
    region_weights,
    region_word_cosines,
    shares,
)
from l2rm_jax.models.chunks import keep_for_backward, map_captions, pairwise
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.head import SimilarityHead, register_head

MATCHINGS = ("partial", "naive")
DIRECTIONS = ("t2i", "i2t")
# Inverse temperature of the attention over words: `--lambda_softmax` of the i-t models in the
# README of SCAN's public code (kuanghuei/SCAN).
I2T_SMOOTHING = 4.0


class CAM(SimilarityHead):
    """Similarity of every image with every caption, in [-1, 1].

    It is the mean of `word_similarities` over the words, or, in the direction "i2t", over the
    regions.

    Attributes:
      matching: "naive" is SCAN. With "partial", words can also attend to the image's mean vector,
        the dustbin, whose contribution does not count; with "i2t", regions can also attend to the
        caption's mean vector.
      direction: "t2i", where words attend to regions, or "i2t", where regions attend to words. Both
        are SCAN's, averaged over the attending words or regions ("AVG").
    """

    choices: ClassVar = {"matching": MATCHINGS}
    needs_region_products = True

    matching: str
    direction: str = "t2i"

    @nn.compact
    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        score = partial(_score if self.direction == "t2i" else _score_i2t, self._dustbin)
        sparse = self.sparse_gradient
        return map_captions(score, (), images, texts, self.chunk, sparse, vectors=False).T

    def alignment(self, images: ImageCode, texts: TextCode) -> Float[Array, "P R L"]:
        """Attention, divided by the number of attending words or regions; see `SimilarityHead`.

        The weights of a pair sum to 1, or to less with `matching="partial"`, where dustbins take
        some. In the direction "i2t", every region has the same weight, and a word's weight is the
        sum of the attention that it receives.
        """
        align = _align if self.direction == "t2i" else _align_i2t
        return pairwise(partial(align, self._dustbin))((), images, texts)

    @property
    def _dustbin(self) -> bool:
        return self.matching == "partial"


register_head("cam", lambda config: CAM(config.model.matching, config.cam.direction))


def word_similarities(
    cosines: Float[Array, "I R C L"],
    products: Float[Array, "I R R"],
    mask: Float[Array, "I R"],
    word_mask: Float[Array, "C L"],
    dustbin: bool,
    smoothing: float = SMOOTHING,
) -> Float[Array, "I C L"]:
    """Cosine of each word with the mixture of regions that the word attends to.

    With `dustbin`, the image's mean vector takes part in the mixture, but its contribution to the
    inner product is left out. Values at padded words are finite and meaningless.

    The mixtures and the mean vector are never computed: a cosine with the mean is a mean of
    cosines, the weight of the mean is added to the weight of each region, and `mixture_norms` needs
    only the `products` of the regions.
    """
    weights, mixture = _attend(cosines, mask, word_mask, dustbin, smoothing)
    inner_products = jnp.sum(weights * cosines, axis=1)
    return inner_products / (mixture_norms(mixture, products) + 1e-8)


def _attend(
    cosines: Float[Array, "I R C L"],
    mask: Float[Array, "I R"],
    word_mask: Float[Array, "C L"],
    dustbin: bool,
    smoothing: float = SMOOTHING,
) -> tuple[Float[Array, "I R C L"], Float[Array, "I R C L"]]:
    """Attention to the regions, without and with the part that comes through the dustbin."""
    weights = region_weights(cosines, mask, word_mask, smoothing)
    if not dustbin:
        return weights, weights
    each = shares(mask)[..., None, None]
    mean_cosine = jnp.sum(each * cosines, axis=1, keepdims=True)
    mean_weight = region_weights(mean_cosine, jnp.ones_like(mask[:, :1]), word_mask, smoothing)
    return weights, weights + each * mean_weight


def _score(dustbin: bool, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I"]:
    cosines = region_word_cosines(images, texts)
    sims = word_similarities(cosines, images.products, images.mask, texts.mask, dustbin)
    return jnp.einsum("icl,cl->ci", sims, shares(texts.mask))


def _align(dustbin: bool, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I R L"]:
    cosines = region_word_cosines(images, texts)
    weights, mixture = _attend(cosines, images.mask, texts.mask, dustbin)
    without_dustbin = jnp.sum(weights, axis=1) / jnp.sum(mixture, axis=1)
    return align_regions(weights, without_dustbin * shares(texts.mask)[None])


def _score_i2t(dustbin: bool, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I"]:
    """Score as `_score` does, with words and regions exchanged."""
    cosines, products = _word_region_cosines(images, texts), region_products(texts.words)
    settings = (dustbin, I2T_SMOOTHING)
    sims = word_similarities(cosines, products, texts.mask, images.mask, *settings)
    return jnp.einsum("cir,ir->ci", sims, shares(images.mask))


def _align_i2t(dustbin: bool, _, images: ImageCode, texts: TextCode) -> Float[Array, "C I R L"]:
    cosines = _word_region_cosines(images, texts)
    weights, mixture = _attend(cosines, texts.mask, images.mask, dustbin, I2T_SMOOTHING)
    attention = weights / jnp.sum(mixture, axis=1, keepdims=True)
    return jnp.moveaxis(attention * shares(images.mask)[None, None], 1, 3)


def _word_region_cosines(images: ImageCode, texts: TextCode) -> Float[Array, "C L I R"]:
    """`region_word_cosines` with the words first."""
    cosines = jnp.einsum("ird,cld->clir", images.regions, texts.words)
    return keep_for_backward(cosines, 1, texts)
