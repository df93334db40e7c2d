"""CAM: words are answered by the regions they attend to (Lee et al., SCAN, ECCV 2018).

The rival that OMIT compares with, and what its partial matching makes of it (Tab. 4).
"""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.attention import map_captions, region_weights
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import l2_norm, masked_mean

MATCHINGS = ("partial", "naive")


class CAM(nn.Module):
    """Similarity of every image with every caption: mean cosine of a word and what it attends to.

    Attributes:
      matching: "naive" is SCAN, text to image. With "partial" the image's mean vector can be
        attended to like a region, and what it answers does not count.
      chunk: captions scored at once, see `captions_at_once`; results do not depend on it.
    """

    matching: str
    chunk: int

    @nn.compact
    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        regions, mask = images.regions, images.mask
        counts = mask
        if self.matching == "partial":
            regions = jnp.concatenate([masked_mean(regions, mask)[:, None], regions], axis=1)
            counts = jnp.pad(mask, ((0, 0), (1, 0)))
            mask = jnp.pad(mask, ((0, 0), (1, 0)), constant_values=1.0)
        score = partial(_score, regions, mask, counts)
        return map_captions(score, regions, (texts.words, texts.mask), self.chunk).T


def word_similarities(
    regions: Float[Array, "I R D"],
    mask: Float[Array, "I R"],
    counts: Float[Array, "I R"],
    words: Float[Array, "C L D"],
    word_mask: Float[Array, "C L"],
) -> Float[Array, "I C L"]:
    """Cosine of each word with the mixture of `regions` that it attends to, without what the
    regions contribute whose `counts` is 0; finite and meaningless at padded words."""
    weights = region_weights(regions, mask, words, word_mask)
    mixture = jnp.einsum("ircl,ird->icld", weights, regions)
    counted = weights * counts[..., None, None]
    answer = jnp.einsum("ircl,ird,cld->icl", counted, regions, words)
    return answer / (l2_norm(mixture) + 1e-8)


def _score(regions, mask, counts, words, word_mask) -> Float[Array, "C I"]:
    sims = word_similarities(regions, mask, counts, words, word_mask)
    return jnp.einsum("icl,cl->ci", sims, word_mask / word_mask.sum(axis=1, keepdims=True))
