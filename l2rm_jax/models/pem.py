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

# Least squared distance: rounding leaves about this much, and a square root has no gradient at 0.
LEAST = 1e-6


class PEM(SimilarityHead):
    """Similarity of every image with every caption: minus the 2-Wasserstein distance (<= 0) of
    two Gaussians with diagonal covariances."""

    @nn.compact
    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        image = Gaussian(name="image")(images.regions, images.mask)
        text = Gaussian(name="text")(texts.words, texts.mask)
        # Distances of near points are differences of large numbers: no digit can be spared.
        products = jnp.matmul(image, text.T, precision=jax.lax.Precision.HIGHEST)
        squared = jnp.sum(image**2, axis=1)[:, None] + jnp.sum(text**2, axis=1) - 2 * products
        return -jnp.sqrt(jnp.maximum(squared, LEAST))


register_head("pem", lambda config: PEM())


class Gaussian(nn.Module):
    """Mean and standard deviations less 1, `[n, k, d] -> [n, 2d]`: the 2-Wasserstein distance of
    two such Gaussians is the Euclidean distance of these vectors.

    The mean is the unit mean of the items; the logarithms of the deviations are a unit vector too,
    towards that mean and a learned average of the items.
    """

    @nn.compact
    def __call__(
        self, items: Float[Array, "n k d"], mask: Float[Array, "n k"]
    ) -> Float[Array, "n 2d"]:
        hidden = nn.tanh(Linear(items.shape[-1] // 2, name="hidden")(items))
        logits = Linear(1, name="attention")(hidden)[..., 0]
        weights = jax.nn.softmax(logits, axis=1, where=mask > 0)
        mean = l2_normalise(masked_mean(items, mask))
        log_deviation = l2_normalise(mean + jnp.einsum("nk,nkd->nd", weights, items))
        return jnp.concatenate([mean, jnp.expm1(log_deviation)], axis=-1)
