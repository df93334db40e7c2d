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
    tau: float | Float[Array, ""],
    weights: float | Float[Array, " pairs"] = 1.0,
) -> Float[Array, ""]:
    """InfoNCE (L2RM section 3.2): the mean over pairs, both directions added.

    Args:
        sims: similarities [images, captions], square.
        tau: temperature, > 0.
        weights: factor of each pair's loss, >= 0, such as its probability of being matched. The
            mean divides by the number of pairs, not by the sum of the weights.

    Returns:
        A scalar >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    return jnp.mean(weights * info_nce_per_pair(sims, tau=tau))


def soft_targets(
    sims: Float[Array, "pairs pairs"],
    labels: Float[Array, " pairs"],
    cutoff: float | Float[Array, ""],
    *,
    tau: float,
) -> Float[Array, ""]:
    """Cross entropy with soft targets: other candidates share one minus the pair's label.

    CREAM's loss (Ma et al., TIP 2024): in the row of image i, the target of its own caption is the
    label y_i, and the target of another caption j is
    `(1 - y_i) sims[i, j] / sum_{k != i} sims[i, k]`, or 0 below the cutoff. Columns are treated the
    same way. As in the authors' code, the gradient also flows through these targets. The authors'
    similarities are in [0, 1]; here negative ones count as 0, so that no sum is negative.

    Args:
        sims: similarities [images, captions], square.
        labels: how likely each pair matches, in [0, 1].
        cutoff: smallest target of another candidate; all targets are below 1.
        tau: temperature, > 0.

    Returns:
        A scalar >= 0, the mean over pairs, both directions added.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    rows, columns = _log_probabilities(sims, tau)
    own = jnp.eye(len(sims), dtype=bool)
    others = jnp.where(own, 0.0, jnp.maximum(sims, 0.0))

    def targets(axis: int) -> Float[Array, "pairs pairs"]:
        left = jnp.expand_dims(1 - labels, axis)
        shared = left * others / (jnp.sum(others, axis=axis, keepdims=True) + 1e-6)
        return jnp.where(own, labels, jnp.where(shared >= cutoff, shared, 0.0))

    return -jnp.sum(targets(1) * rows + targets(0) * columns) / len(sims)


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


def pair_probabilities(sims: Float[Array, "pairs pairs"], *, tau: float) -> Float[Array, " pairs"]:
    """Softmax probability of each stored pair over the batch, the mean of both directions.

    CRCL and SPS predict with it how likely each pair matches. It depends on the batch.

    Args:
        sims: similarities [images, captions], square.
        tau: temperature, > 0.

    Returns:
        One probability per pair, in [0, 1], without gradient.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    rows, columns = _log_probabilities(jax.lax.stop_gradient(sims), tau)
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


def sigmoid_contrastive(
    sims: Float[Array, "pairs pairs"],
    *,
    scale: Float[Array, ""],
    bias: Float[Array, ""],
    weights: float | Float[Array, " pairs"] = 1.0,
) -> Float[Array, ""]:
    """SigLIP's loss (Zhai et al., ICCV 2023, Eq. 1): classify each combination independently.

    The sum over all images and captions of the batch of `-log sigmoid(z (scale sim + bias))`, where
    z is 1 for stored pairs and -1 for all others, divided by the number of pairs.

    Args:
        sims: similarities [images, captions], square.
        scale: factor of the similarities, > 0.
        bias: added to the scaled similarities.
        weights: factor of each stored pair's term, >= 0. The other combinations count in full.

    Returns:
        A scalar >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    _check_square(sims)
    logits = scale * sims + bias
    stored = jnp.eye(len(sims), dtype=bool)
    factor = jnp.where(stored, weights, 1.0)  # of a vector, the diagonal has each pair's own
    # -log sigmoid(x) = softplus(-x)
    return jnp.sum(factor * jax.nn.softplus(jnp.where(stored, -logits, logits))) / len(sims)


def _check_square(sims):
    if sims.ndim != 2 or sims.shape[0] != sims.shape[1]:
        raise ValueError(f"sims: found shape {sims.shape}, expected a square matrix of pairs")


def _log_probabilities(sims, tau):
    """Log softmax over each image's captions and over each caption's images."""
    _check_square(sims)
    return jax.nn.log_softmax(sims / tau, axis=1), jax.nn.log_softmax(sims / tau, axis=0)
