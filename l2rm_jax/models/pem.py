"""PEM: images and captions as Gaussians, compared by their Wasserstein distance.

Chun et al., "Probabilistic Embeddings for Cross-Modal Retrieval" (PCME), CVPR 2021, in the form
that OMIT compares with (its Eq. 13).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import SimilarityHead, register_head
from l2rm_jax.models.layers import Linear, l2_normalise, masked_mean

# Smaller squared distances are raised to this: rounding errors are about as large, and the square
# root has no finite gradient at 0.
MIN_SQUARED_DISTANCE = 1e-6


class PEM(SimilarityHead):
    """Similarity of every image with every caption: minus their 2-Wasserstein distance, below 0.

    An image and a caption are Gaussians with diagonal covariances.
    """

    metric = "l2sq"

    def setup(self):
        self.image, self.text = Gaussian(), Gaussian()

    def embed_images(self, images: ImageCode) -> Float[Array, "I D"]:
        """Gaussians of the images, as vectors."""
        return self.image(images.regions, images.mask)

    def embed_texts(self, texts: TextCode) -> Float[Array, "J D"]:
        """Gaussians of the captions, as vectors."""
        return self.text(texts.words, texts.mask)

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        image, text = self.embed_images(images), self.embed_texts(texts)
        # The distance of close points is a small difference of large numbers, hence full precision.
        products = jnp.matmul(image, text.T, precision=jax.lax.Precision.HIGHEST)
        squared = jnp.sum(image**2, axis=1)[:, None] + jnp.sum(text**2, axis=1)[None] - 2 * products
        return -jnp.sqrt(jnp.maximum(squared, MIN_SQUARED_DISTANCE))

    def bounded(self, sims: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.maximum(1 + sims, -1)


register_head("pem", lambda config: PEM())


class Gaussian(nn.Module):
    """Gaussian of a set of regions or words, as a vector: `[n, k, d] -> [n, 2d]`.

    The vector holds the mean and the standard deviations minus 1. The Euclidean distance of two
    such vectors is the 2-Wasserstein distance of their Gaussians.

    The mean is the mean of the items, scaled to unit length. The logarithms of the standard
    deviations are this mean plus an attention-weighted mean of the items, scaled to unit length.
    """

    @nn.compact
    def __call__(
        self, items: Float[Array, "n k d"], mask: Float[Array, "n k"]
    ) -> Float[Array, "n 2*d"]:
        hidden = nn.tanh(Linear(items.shape[-1] // 2, name="hidden")(items))
        logits = Linear(1, name="attention")(hidden)[..., 0]
        weights = jax.nn.softmax(logits, axis=1, where=mask > 0)
        mean = l2_normalise(masked_mean(items, mask))
        log_deviation = l2_normalise(mean + jnp.einsum("nk,nkd->nd", weights, items))
        return jnp.concatenate([mean, jnp.expm1(log_deviation)], axis=-1)
