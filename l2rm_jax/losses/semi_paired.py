"""RCSL's losses for data with few known pairs and many pseudo-pairs, which are often wrong.

Qin et al., "Robust Semi-paired Multimodal Learning for Cross-modal Retrieval", AAAI 2026. Each loss
is a function of a matrix: of similarities, or of cosines between embeddings.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

UNIFORMITY_SCALE = 2.0  # factor of the squared distance in the exponent (RCSL Eq. 3)


def paired_triplet(
    sims: Float[Array, "B B"], paired: Bool[Array, " B"], *, margin: float
) -> Float[Array, ""]:
    """Triplet loss with hardest negatives, only over the known pairs (RCSL Eq. 5).

    Args:
        sims: similarities [images, captions], square.
        paired: True for the rows of the batch that are known pairs. Other rows neither add a loss
            nor serve as negatives.
        margin: margin of a win, >= 0.

    Returns:
        The sum over the known pairs; 0 if there are fewer than two.
    """
    positive = jnp.diagonal(sims)
    compared = paired[:, None] & paired[None] & ~jnp.eye(len(sims), dtype=bool)
    captions = jnp.where(compared, jax.nn.relu(margin + sims - positive[:, None]), 0.0)
    images = jnp.where(compared, jax.nn.relu(margin + sims - positive[None]), 0.0)
    return jnp.sum(captions.max(axis=1) + images.max(axis=0))


def alignment(cosines: Float[Array, "B B"], paired: Bool[Array, " B"]) -> Float[Array, ""]:
    """Mean squared distance between the embeddings of a known pair (RCSL, before Eq. 3).

    Args:
        cosines: cosine of every image embedding with every caption embedding, square.
        paired: True for the rows of the batch that are known pairs.

    Returns:
        A scalar in [0, 4]; 0 if there is no known pair.
    """
    distances = 2.0 - 2.0 * jnp.diagonal(cosines)
    known = jnp.maximum(jnp.sum(paired), 1).astype(distances.dtype)
    return jnp.sum(distances * paired.astype(distances.dtype)) / known


def uniformity(cosines: Float[Array, "B B"]) -> Float[Array, ""]:
    """Uniformity loss of the embeddings of one modality (RCSL Eq. 3, one of its two terms).

    Args:
        cosines: cosine of every embedding with every other, B >= 2.

    Returns:
        Log of the mean of exp(-2 distance^2) over pairs of distinct embeddings, in [-8, 0]; lower
        values mean a more uniform spread.
    """
    size = len(cosines)
    exponents = -UNIFORMITY_SCALE * (2.0 - 2.0 * cosines)
    distinct = ~jnp.eye(size, dtype=bool)
    return jax.nn.logsumexp(exponents, where=distinct) - jnp.log(size * (size - 1.0))


def robust_mining(sims: Float[Array, "B B"], *, tau: float) -> Float[Array, ""]:
    """Softmax probability given to all candidates but the stored one (RCSL Eq. 8-9).

    The loss is bounded, which makes it robust to mismatched pairs (RCSL Lemma 1).

    Args:
        sims: similarities [images, captions], square, stored pairs on the diagonal.
        tau: temperature, > 0.

    Returns:
        The sum over pairs of the mean of both directions, in [0, B].
    """
    rows, columns = (jnp.diagonal(jax.nn.softmax(sims / tau, axis=axis)) for axis in (1, 0))
    return jnp.sum(1.0 - (rows + columns) / 2)
