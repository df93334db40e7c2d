"""CAM: words are answered by the regions they attend to (Lee et al., SCAN, ECCV 2018).

The rival that OMIT compares with, and what its partial matching makes of it (Tab. 4).
"""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.attention import (
    mixture_norms,
    region_products,
    region_weights,
    region_word_cosines,
)
from l2rm_jax.models.chunks import map_captions
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import masked_mean

MATCHINGS = ("partial", "naive")


class CAM(nn.Module):
    """Similarity of every image with every caption: mean cosine of a word and what it attends to.

    Attributes:
      matching: "naive" is SCAN, text to image. With "partial" the image's mean vector can be
        attended to like a region, and what it answers does not count.
      chunk: captions scored at once, see `captions_at_once`; results do not depend on it.
      few_slopes: see `map_captions`.
    """

    matching: str
    chunk: int
    few_slopes: bool = False

    @nn.compact
    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        dustbin = self.matching == "partial"
        if dustbin:
            mean = masked_mean(images.regions, images.mask)
            images = images.replace(
                regions=jnp.concatenate([mean[:, None], images.regions], axis=1),
                mask=jnp.pad(images.mask, ((0, 0), (1, 0)), constant_values=1.0),
            )
        # Once for all captions, of which each chunk would spend as long on them as on its scores.
        images = images.replace(products=region_products(images.regions))
        stages = (region_word_cosines, partial(_score, dustbin))
        return map_captions(stages, (), images, texts, self.chunk, self.few_slopes).T


def word_similarities(
    cosines: Float[Array, "I R C L"],
    products: Float[Array, "I R R"],
    mask: Float[Array, "I R"],
    counts: Float[Array, "I R"],
    word_mask: Float[Array, "C L"],
) -> Float[Array, "I C L"]:
    """Cosine of each word with the mixture of regions that it attends to, without what the regions
    contribute whose `counts` is 0; finite and meaningless at padded words.

    The mixtures themselves are not made: their norms come from the regions' `products`.
    """
    weights = region_weights(cosines, mask, word_mask)
    answer = jnp.einsum("ircl,ir->icl", weights * cosines, counts)
    return answer / (mixture_norms(weights, products) + 1e-8)


def _score(
    dustbin: bool, _, images: ImageCode, texts: TextCode, cosines: Float[Array, "I R C L"]
) -> Float[Array, "C I"]:
    counts = images.mask.at[:, 0].set(0.0) if dustbin else images.mask
    sims = word_similarities(cosines, images.products, images.mask, counts, texts.mask)
    shares = texts.mask / jnp.sum(texts.mask, axis=1, keepdims=True)
    return jnp.einsum("icl,cl->ci", sims, shares)
