"""Triplet losses: a right pair must beat every wrong one by a margin.

Each function takes the square similarity matrix of a batch, right pairs on its diagonal, and
compares in both directions: with the other captions of an image (its row) and with the other
images of a caption (its column).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def triplet_hardest(sims: Float[Array, "pairs pairs"], *, margin: float) -> Float[Array, ""]:
    """Triplet loss with the hardest negatives (L2RM Eq. 2), summed over the batch.

    Args:
        sims: similarities [images, captions], square.
        margin: by how much a right pair must win, >= 0.

    Returns:
        The sum over pairs of the two largest hinges.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    captions, images = _hinges(sims, margin)
    return jnp.sum(captions.max(axis=1) + images.max(axis=0))


def triplet_mean(sims: Float[Array, "pairs pairs"], *, margin: float) -> Float[Array, ""]:
    """Triplet loss over all negatives, the reference code's warm-up form.

    Args:
        sims: similarities [images, captions], square.
        margin: by how much a right pair must win, >= 0.

    Returns:
        The sum of `per_pair_hinge` over the batch.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    return jnp.sum(per_pair_hinge(sims, margin=margin))


def per_pair_hinge(sims: Float[Array, "pairs pairs"], *, margin: float) -> Float[Array, " pairs"]:
    """Mean hinge of each pair over its in-batch negatives, what the beta mixture splits.

    L2RM Eq. 4 takes the hardest negative here; the reference code, followed here, the mean.
    It divides by the batch size, the pair itself counting as a zero.

    Args:
        sims: similarities [images, captions], square.
        margin: by how much a right pair must win, >= 0.

    Returns:
        One loss per pair, >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    captions, images = _hinges(sims, margin)
    return captions.mean(axis=1) + images.mean(axis=0)


def _hinges(sims, margin):
    """Hinges against wrong captions (compare in a row) and wrong images (in a column)."""
    if sims.ndim != 2 or sims.shape[0] != sims.shape[1]:
        raise ValueError(f"sims must be a square matrix of right pairs, found {sims.shape}")
    right = jnp.diagonal(sims)
    wrong = ~jnp.eye(len(sims), dtype=bool)
    captions = jnp.where(wrong, jnp.maximum(margin + sims - right[:, None], 0.0), 0.0)
    images = jnp.where(wrong, jnp.maximum(margin + sims - right[None, :], 0.0), 0.0)
    return captions, images
