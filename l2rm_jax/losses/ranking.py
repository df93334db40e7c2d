"""Triplet losses: a stored pair must score higher than its negatives by a margin.

Each function takes the square similarity matrix of a batch, with the stored pairs on its diagonal.
It compares each pair in both directions: with the other captions of its image (the row) and with
the other images of its caption (the column). The hinge of a negative is
max(0, margin + score of the negative - score of the pair).

The losses of the compared methods are here too. NCR (Huang et al., NeurIPS 2021) and BiCro (Yang et
al., CVPR 2023) give each pair its own margin; DECL (Qin et al., ACM MM 2022) takes the k hardest
negatives.
"""

from collections.abc import Callable
from math import log, pi

import jax.numpy as jnp
from jax.lax import top_k
from jaxtyping import Array, Float, Int

# Soft margins by name, as shares of the full margin: functions of a label in [0, 1]. All are 0 at
# label 0 and 1 at label 1.
SOFT_MARGINS: dict[str, Callable] = {
    "exponential": lambda label: jnp.expm1(log(10) * label) / 9,  # = (10^label - 1) / 9
    "linear": lambda label: label,
    "sin": lambda label: jnp.sin(pi / 2 * label) ** 2,  # = sin(pi label - pi / 2) / 2 + 1 / 2
}


def triplet_hardest(
    sims: Float[Array, "pairs pairs"],
    *,
    margin: float | Float[Array, " pairs"] | Float[Array, "pairs pairs"],
    weights: float | Float[Array, " pairs"] = 1.0,
) -> Float[Array, ""]:
    """Triplet loss with the hardest negative per direction (L2RM Eq. 2), summed over the batch.

    Args:
        sims: similarities [images, captions], square.
        margin: margin of a win, >= 0. A vector holds the margin of each pair, used in
            its row and in its column. A matrix holds the margin of each image with each caption,
            used in both directions.
        weights: factor of both hinges of each pair, >= 0.

    Returns:
        The sum over pairs of the largest hinge in the row and the largest in the column.

    Raises:
        ValueError: if ``sims`` is not a square matrix, or ``margin`` has another size.
    """
    captions, images = _hinges(sims, margin)
    return jnp.sum(weights * (captions.max(axis=1) + images.max(axis=0)))


def triplet_mean(
    sims: Float[Array, "pairs pairs"],
    *,
    margin: float,
    weights: float | Float[Array, " pairs"] = 1.0,
) -> Float[Array, ""]:
    """Triplet loss averaged over all negatives, the reference code's warm-up loss.

    Args:
        sims: similarities [images, captions], square.
        margin: margin of a win, >= 0.
        weights: factor of each pair's hinges, >= 0.

    Returns:
        The sum of `per_pair_hinge` over the batch.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    return jnp.sum(weights * per_pair_hinge(sims, margin=margin))


def per_pair_hinge(sims: Float[Array, "pairs pairs"], *, margin: float) -> Float[Array, " pairs"]:
    """Mean hinge of each pair over its in-batch negatives, the loss that the beta mixture splits.

    L2RM Eq. 4 takes the hardest negative. The reference code, followed here, takes the mean over
    the whole row and column: it divides by the batch size and counts the pair itself as zero.

    Args:
        sims: similarities [images, captions], square.
        margin: margin of a win, >= 0.

    Returns:
        One loss per pair, >= 0; both directions are added.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    captions, images = _hinges(sims, margin)
    return captions.mean(axis=1) + images.mean(axis=0)


def hardest_k(
    sims: Float[Array, "pairs pairs"], k: int | Int[Array, ""], *, margin: float
) -> Float[Array, " pairs"]:
    """Mean hinge of each pair over its k hardest negatives per direction (DECL's RDH loss).

    The shapes do not depend on ``k``, so that it may change from step to step without compiling.

    Args:
        sims: similarities [images, captions], square.
        k: number of negatives per direction, >= 1; more than pairs - 1 counts as pairs - 1.
        margin: margin of a win, >= 0.

    Returns:
        One loss per pair, >= 0; both directions are added.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    captions, images = _hinges(sims, margin)
    count = jnp.clip(k, 1, max(len(sims) - 1, 1))
    is_hard = jnp.arange(len(sims))[None] >= len(sims) - count  # the largest come last
    hardest = jnp.sort(captions, axis=1) + jnp.sort(images, axis=0).T
    return jnp.sum(jnp.where(is_hard, hardest, 0.0), axis=1) / count.astype(sims.dtype)


def smallest(values: Float[Array, " pairs"], share: float) -> Float[Array, ""]:
    """Sum of the smallest values, up to a share of all: BiCro's warm-up over per-pair losses.

    The other values get no gradient.

    Args:
        values: one loss per pair.
        share: share of the values to sum, in (0, 1]. Their number is rounded down, but is at
            least 1.

    Returns:
        A scalar, the sum.

    Raises:
        ValueError: if ``share`` is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share: found {share}, expected a number in (0, 1]")
    return jnp.sum(jnp.sort(values)[: max(int(share * len(values)), 1)])


def soft_margin(
    labels: Float[Array, "*shape"], *, margin: float, kind: str = "exponential"
) -> Float[Array, "*shape"]:
    """Margins that grow with the labels (NCR): 0 at label 0, the full margin at label 1.

    Args:
        labels: how likely each pair matches, in [0, 1].
        margin: the full margin, >= 0.
        kind: one of `SOFT_MARGINS`.

    Returns:
        Margins in [0, margin].
    """
    return margin * SOFT_MARGINS[kind](labels)


def unviolated_margin(
    sims: Float[Array, "pairs pairs"], *, margin: float
) -> Float[Array, " pairs"]:
    """Mean margin that each pair keeps against its negatives.

    BiCro chooses its anchors by this score, and `prediction` divides it by its mean over the best
    pairs.

    Args:
        sims: similarities [images, captions], square.
        margin: margin of a win, > 0.

    Returns:
        The margin minus the mean of the two directions' hinges, cut at 0; in [0, margin].

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    return jnp.maximum(margin - per_pair_hinge(sims, margin=margin) / 2, 0.0)


def prediction(sims: Float[Array, "pairs pairs"], *, margin: float) -> Float[Array, " pairs"]:
    """Estimate from the similarities how likely each pair matches (NCR's ``predict``).

    The estimate depends on the batch: it compares `unviolated_margin` with its mean over the best
    tenth (and one) of the batch.

    Args:
        sims: similarities [images, captions], square.
        margin: margin of a win, > 0.

    Returns:
        One estimate per pair, in [0, 1]; all 0 if no pair keeps any of its margin.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    kept = unviolated_margin(sims, margin=margin)
    best = jnp.mean(top_k(kept, len(sims) // 10 + 1)[0])
    return jnp.minimum(kept / jnp.where(best > 0, best, 1.0), 1.0)


def _hinges(sims, margin):
    """Hinges against the other captions (rows) and against the other images (columns)."""
    if sims.ndim != 2 or sims.shape[0] != sims.shape[1]:
        raise ValueError(f"sims: found shape {sims.shape}, expected a square matrix of pairs")
    in_row = in_column = margin
    if jnp.ndim(margin):
        if jnp.shape(margin) not in (sims.shape[:1], sims.shape):
            raise ValueError(
                f"margin: found shape {jnp.shape(margin)}, expected a number, a vector or a matrix "
                f"that fits sims of shape {sims.shape}"
            )
        if jnp.ndim(margin) == 1:
            in_row, in_column = margin[:, None], margin[None, :]
    positive = jnp.diagonal(sims)
    negative = ~jnp.eye(len(sims), dtype=bool)
    captions = jnp.where(negative, jnp.maximum(in_row + sims - positive[:, None], 0.0), 0.0)
    images = jnp.where(negative, jnp.maximum(in_column + sims - positive[None, :], 0.0), 0.0)
    return captions, images
