"""One weight per pair from a score of a model that has not seen the pair.

OSA (Li et al., arXiv 2410.01944) scores each pair once by the cosine of a frozen model. The
threshold is the mean cosine of unrelated images and captions. Paper and code have other curves.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def osa(
    scores: Float[Array, " pairs"], threshold: float | Float[Array, ""] = 0.0
) -> Float[Array, " pairs"]:
    """Weigh pairs by OSA's paper: `t**2 (1 - t)`, where t is the cosine above the threshold.

    The weight rises up to t = 2/3, which the cosines of a model of two encoders hardly reach, and
    falls after it. It does not depend on the batch.

    Args:
        scores: cosine of each pair.
        threshold: cosine of unrelated images and captions.

    Returns:
        A weight per pair in [0, 4/27]; 0 at or below the threshold.
    """
    above = jnp.clip(scores - threshold, 0.0, 1.0)
    return above**2 * (1 - above)


def osa_code(
    scores: Float[Array, " pairs"], threshold: float | Float[Array, ""] = 0.0
) -> Float[Array, " pairs"]:
    """Weigh the pairs of a batch by OSA's code: `t**2 (1 - t**2)`, relative to the batch's best.

    The best pair of a batch has t = 1, so its weight is 0. A batch in which a single pair is above
    the threshold therefore has no weight at all, as in the authors' code; where none is, theirs
    divides 0 by 0, and here all weights are 0.

    Args:
        scores: score of each pair of the global batch, on any scale.
        threshold: score of unrelated images and captions.

    Returns:
        A weight per pair in [0, 1/4]; 0 at or below the threshold.
    """
    above = jnp.maximum(scores - threshold, 0.0)
    best = jnp.max(above)
    share = above / jnp.where(best > 0, best, 1.0)
    return share**2 * (1 - share**2)
