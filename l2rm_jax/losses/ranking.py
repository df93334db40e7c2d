"""Triplet losses: a stored pair must score higher than its negatives by a margin.

Each function takes the square similarity matrix of a batch, with the stored pairs on its diagonal.
It compares each pair in both directions: with the other captions of its image (the row) and with
the other images of its caption (the column). The hinge of a negative is
max(0, margin + score of the negative - score of the pair).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def triplet_hardest(sims: Float[Array, "pairs pairs"], *, margin: float) -> Float[Array, ""]:
    """Triplet loss with the hardest negative per direction (L2RM Eq. 2), summed over the batch.

    Args:
        sims: similarities [images, captions], square.
        margin: by how much a pair must win, >= 0.

    Returns:
        The sum over pairs of the largest hinge in the row and the largest in the column.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    captions, images = _hinges(sims, margin)
    return jnp.sum(captions.max(axis=1) + images.max(axis=0))


def triplet_mean(sims: Float[Array, "pairs pairs"], *, margin: float) -> Float[Array, ""]:
    """Triplet loss averaged over all negatives, the reference code's warm-up loss.

    Args:
        sims: similarities [images, captions], square.
        margin: by how much a pair must win, >= 0.

    Returns:
        The sum of `per_pair_hinge` over the batch.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    return jnp.sum(per_pair_hinge(sims, margin=margin))


def per_pair_hinge(sims: Float[Array, "pairs pairs"], *, margin: float) -> Float[Array, " pairs"]:
    """Mean hinge of each pair over its in-batch negatives, the loss that the beta mixture splits.

    L2RM Eq. 4 takes the hardest negative. The reference code, followed here, takes the mean over
    the whole row and column: it divides by the batch size and counts the pair itself as zero.

    Args:
        sims: similarities [images, captions], square.
        margin: by how much a pair must win, >= 0.

    Returns:
        One loss per pair, >= 0; both directions are added.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    captions, images = _hinges(sims, margin)
    return captions.mean(axis=1) + images.mean(axis=0)


def _hinges(sims, margin):
    """Hinges against the other captions (rows) and against the other images (columns)."""
    if sims.ndim != 2 or sims.shape[0] != sims.shape[1]:
        raise ValueError(f"sims must be a square matrix of stored pairs, found {sims.shape}")
    positive = jnp.diagonal(sims)
    negative = ~jnp.eye(len(sims), dtype=bool)
    captions = jnp.where(negative, jnp.maximum(margin + sims - positive[:, None], 0.0), 0.0)
    images = jnp.where(negative, jnp.maximum(margin + sims - positive[None, :], 0.0), 0.0)
    return captions, images
