"""Losses of SPS: two penalties, and labels of images with captions of other images.

Xie et al., IJCAI 2025, as in its authors' code.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

SMALLEST_LABEL = 0.5  # a lower label becomes 0


def symmetry(sims: Float[Array, "pairs pairs"]) -> Float[Array, ""]:
    """Mean squared difference between the similarities of i with j and of j with i."""
    return jnp.mean((sims - sims.T) ** 2)


def structure(
    images: Float[Array, "pairs Di"], captions: Float[Array, "pairs Dc"]
) -> Float[Array, ""]:
    """Mean squared difference between the cosines among images and among their captions.

    Args:
        images, captions: unit vectors.
    """
    return jnp.mean((images @ images.T - captions @ captions.T) ** 2)


def nearest(
    vectors: Float[Array, "queries D"], others: Float[Array, "others D"]
) -> tuple[Int[Array, " queries"], Float[Array, " queries"]]:
    """Find the nearest vector in `others` for each unit vector: its row and cosine."""
    cosines = vectors @ others.T
    return jnp.argmax(cosines, axis=1), jnp.max(cosines, axis=1)


def rematched_labels(
    probabilities: Float[Array, " pairs"], cosines: Float[Array, " pairs"]
) -> Float[Array, " pairs"]:
    """Labels of images with the caption of another: probability of the pair times the cosine."""
    labels = probabilities * cosines
    return jnp.where(labels < SMALLEST_LABEL, 0.0, labels)
