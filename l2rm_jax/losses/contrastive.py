"""Contrastive losses: a softmax over the batch must pick the right pair.

Each function takes the square similarity matrix of a batch, right pairs on its diagonal. Both
directions, image to text (rows) and text to image (columns), are added, not averaged.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# log 0 of the one-hot label, as the reference code has it: log(0 + 1e-7). On the diagonal
# log(1 + 1e-7) is 1e-7, which no tolerance sees, but it keeps the value exact.
_LOG_WRONG = math.log(1e-7)
_LOG_RIGHT = math.log1p(1e-7)


def info_nce(sims: Float[Array, "pairs pairs"], *, tau: float) -> Float[Array, ""]:
    """InfoNCE (L2RM section 3.2), the mean over pairs, both directions added.

    Args:
        sims: similarities [images, captions], square.
        tau: temperature, > 0.

    Returns:
        A scalar >= 0.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    rows, columns = _log_probabilities(sims, tau)
    return -jnp.mean(jnp.diagonal(rows) + jnp.diagonal(columns))


def robust_info_nce(sims: Float[Array, "pairs pairs"], *, tau: float) -> Float[Array, ""]:
    """Half of InfoNCE plus reverse cross entropy, L2RM's warm-up loss.

    Reverse cross entropy swaps prediction and label, which bounds what a wrong label costs. The
    paper clips the one-hot label to [eps, 1 - eps] and adds the two losses; the reference code,
    followed here, takes log(label + 1e-7) and half of their sum.

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


def _log_probabilities(sims, tau):
    """Log softmax over the captions of an image and over the images of a caption."""
    if sims.ndim != 2 or sims.shape[0] != sims.shape[1]:
        raise ValueError(f"sims must be a square matrix of right pairs, found {sims.shape}")
    return jax.nn.log_softmax(sims / tau, axis=1), jax.nn.log_softmax(sims / tau, axis=0)
