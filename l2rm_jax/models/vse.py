"""VSE: one vector an image, one a caption, compared by their cosine (Faghri et al., BMVC 2018)."""

import flax.linen as nn
from jaxtyping import Array, Float

from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.layers import l2_normalise, masked_mean


class VSE(nn.Module):
    """Cosine of the mean region and the mean word, in [-1, 1]."""

    def embed_images(self, images: ImageCode) -> Float[Array, "I D"]:
        return l2_normalise(masked_mean(images.regions, images.mask))

    def embed_texts(self, texts: TextCode) -> Float[Array, "J D"]:
        return l2_normalise(masked_mean(texts.words, texts.mask))

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        return self.embed_images(images) @ self.embed_texts(texts).T
