"""Contrastive losses: the softmax over a batch must pick the stored pair.

Each function takes the square similarity matrix of a batch, with the stored pairs on its diagonal.
The losses of both directions, image to text (rows) and text to image (columns), are added, not
averaged.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# The reference code takes log(label + 1e-7) of the one-hot label. On the diagonal that is 1e-7
# instead of 0: negligible, but it keeps the loss equal to the reference.
_LOG_WRONG = math.log(1e-7)
_LOG_RIGHT = math.log1p(1e-7)


def info_nce(
    sims: Float[Array, "pairs pairs"],
    *,
    tau: float,
    weights: Float[Array, " pairs"] | None = None,
) -> Float[Array, ""]:
    """InfoNCE (L2RM section 3.2): the mean over pairs, both directions added.

    Args:
        sims: similarities [images, captions], square.
        tau: temperature, > 0.
        weights: weight of each pair's loss, >= 0. None weighs all by 1. The sum is divided by the
            number of pairs, whatever their weights.

    Returns:
        A scalar >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    losses = info_nce_per_pair(sims, tau=tau)
    return jnp.mean(losses if weights is None else weights * losses)


def info_nce_per_pair(sims: Float[Array, "pairs pairs"], *, tau: float) -> Float[Array, " pairs"]:
    """InfoNCE of each pair, both directions added; SPS's mixture splits it.

    Args:
        sims: similarities [images, captions], square.
        tau: temperature, > 0.

    Returns:
        One loss per pair, >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    rows, columns = _log_probabilities(sims, tau)
    return -(jnp.diagonal(rows) + jnp.diagonal(columns))


def matched_probability(sims: Float[Array, "pairs pairs"], *, tau: float) -> Float[Array, " pairs"]:
    """Softmax probability of each stored pair over the batch, the mean of both directions.

    CRCL and SPS predict with it how likely each pair matches. It depends on the batch.

    Args:
        sims: similarities [images, captions], square.
        tau: temperature, > 0.

    Returns:
        One probability per pair, in [0, 1].

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    rows, columns = _log_probabilities(sims, tau)
    return (jnp.exp(jnp.diagonal(rows)) + jnp.exp(jnp.diagonal(columns))) / 2


def robust_info_nce(sims: Float[Array, "pairs pairs"], *, tau: float) -> Float[Array, ""]:
    """Half the sum of InfoNCE and reverse cross entropy, L2RM's warm-up loss.

    Reverse cross entropy swaps prediction and label, which bounds the loss of a mismatched pair.
    The paper clips the one-hot label to [eps, 1 - eps] and adds the two losses. The reference code,
    followed here, takes log(label + 1e-7) and halves the sum.

    Args:
        sims: similarities [images, captions], square.
        tau: temperature, > 0.

    Returns:
        A scalar >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    rows, columns = _log_probabilities(sims, tau)
    log_label = jnp.where(jnp.eye(len(sims), dtype=bool), _LOG_RIGHT, _LOG_WRONG)
    reverse = -jnp.sum((jnp.exp(rows) + jnp.exp(columns)) * log_label) / len(sims)
    return 0.5 * (info_nce(sims, tau=tau) + reverse)


def symmetry(sims: Float[Array, "pairs pairs"]) -> Float[Array, ""]:
    """SPS's first regulariser: image i with caption j scores as image j with caption i does.

    Args:
        sims: similarities [images, captions], square, stored pairs on the diagonal.

    Returns:
        The mean squared difference over all entries, >= 0.
    """
    return jnp.mean((sims - sims.T) ** 2)


def structure(
    images: Float[Array, "pairs pairs"], captions: Float[Array, "pairs pairs"]
) -> Float[Array, ""]:
    """SPS's second regulariser: images of a batch are as similar to each other as their captions.

    Args:
        images: cosines of the images with each other.
        captions: cosines of the captions with each other, in the same order.

    Returns:
        The mean squared difference over all entries, >= 0.
    """
    return jnp.mean((images - captions) ** 2)


def _log_probabilities(sims, tau):
    """Log softmax over each image's captions and over each caption's images."""
    if sims.ndim != 2 or sims.shape[0] != sims.shape[1]:
        raise ValueError(f"sims must be a square matrix of stored pairs, found {sims.shape}")
    return jax.nn.log_softmax(sims / tau, axis=1), jax.nn.log_softmax(sims / tau, axis=0)
