"""RCSL's losses: few pairs are known, and the pseudo-pairs of the rest are often wrong.

Qin et al., "Robust Semi-paired Multimodal Learning for Cross-modal Retrieval", AAAI 2026. Like the
other losses, each is a function of a matrix: of similarities, or of cosines between embeddings.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

UNIFORMITY_SCALE = 2.0  # of the squared distances in the exponent (RCSL Eq. 3)


def paired_triplet(
    sims: Float[Array, "B B"], paired: Bool[Array, " B"], *, margin: float
) -> Float[Array, ""]:
    """Triplet loss of the paired rows alone, with hardest negatives among them (RCSL Eq. 5).

    Args:
        sims: similarities [images, captions], square.
        paired: which rows of the batch are pairs; nothing is known of the others.
        margin: by how much a pair must win, >= 0.

    Returns:
        The sum over the pairs, 0 where there are fewer than two.
    """
    right = jnp.diagonal(sims)
    compared = paired[:, None] & paired & ~jnp.eye(len(sims), dtype=bool)
    captions = jnp.where(compared, jax.nn.relu(margin + sims - right[:, None]), 0.0)
    images = jnp.where(compared, jax.nn.relu(margin + sims - right), 0.0)
    return jnp.sum(captions.max(axis=1) + images.max(axis=0))


def alignment(cosines: Float[Array, "B B"], paired: Bool[Array, " B"]) -> Float[Array, ""]:
    """Mean squared distance of the embeddings of a pair (RCSL, before Eq. 3).

    Args:
        cosines: of image with caption embeddings, square.
        paired: which rows of the batch are pairs.

    Returns:
        A scalar in [0, 4], 0 where there is no pair.
    """
    distances = 2.0 - 2.0 * jnp.diagonal(cosines)
    return jnp.sum(distances * paired) / jnp.maximum(jnp.sum(paired), 1)


def uniformity(cosines: Float[Array, "B B"]) -> Float[Array, ""]:
    """How far the embeddings of one modality are from evenly spread (RCSL Eq. 3, one term of two).

    Args:
        cosines: of the embeddings with each other, B >= 2.

    Returns:
        Log of the mean of exp(-2 distance^2) over distinct embeddings, in [-8, 0].
    """
    size = len(cosines)
    exponents = -UNIFORMITY_SCALE * (2.0 - 2.0 * cosines)
    other = ~jnp.eye(size, dtype=bool)
    return jax.nn.logsumexp(exponents, where=other) - jnp.log(size * (size - 1.0))


def robust_mining(sims: Float[Array, "B B"], *, tau: float) -> Float[Array, ""]:
    """What the softmax leaves to other pairs than the given one (RCSL Eq. 8-9).

    It is bounded, which makes it bear pairs that are wrong (RCSL Lemma 1).

    Args:
        sims: similarities [images, captions], square, the given pairs on its diagonal.
        tau: temperature, > 0.

    Returns:
        The sum over the pairs, the mean of both directions: in [0, B].
    """
    rows, columns = (jnp.diagonal(jax.nn.softmax(sims / tau, axis=axis)) for axis in (1, 0))
    return jnp.sum(1.0 - (rows + columns) / 2)
