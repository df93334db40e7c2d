"""NCU's losses: a model unlearns its least likely pairs with the help of a negative per caption.

Han et al., ICCV 2025 (arXiv 2507.03434). Images, captions and the captions' learned negatives are
unit vectors. The first stage trains the negatives; the second moves the targets of the images by
transport, in which a forgotten pair may go to its negative but not to itself. A caller solves

    cost = transport_cost(candidate_similarities(images, captions, negatives))
    partial_sinkhorn(cost, 1.0, epsilon=0.03, mask=allowed(forgotten))

for the images, and the transposed problem for the captions, whose rows are the captions and, last,
the negatives. The authors stop after 100 iterations, when rows are off by up to 5%.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

HIGH, LOW = -0.2, -0.7  # limits of the similarity of a caption and its negative
EMPHASIS = 10.0  # of the two losses of captions and negatives, in the first stage


def forgotten(logits: Float[Array, "pairs pairs"], count: int) -> Bool[Array, " pairs"]:
    """Choose the pairs to forget: the least probable captions of their images.

    Args:
        logits: scaled similarities [images, captions], square.
        count: number of pairs to forget, >= 1, else the targets divide 0 by 0.

    Returns:
        True for the pairs with the lowest softmax probability over the captions.

    Raises:
        ValueError: if ``count`` is less than 1 or more than the number of pairs.
    """
    if not 1 <= count <= len(logits):
        raise ValueError(f"count: found {count}, expected 1 to {len(logits)} pairs to forget")
    probability = jnp.diagonal(jax.nn.log_softmax(logits, axis=1))
    return jnp.zeros(len(logits), bool).at[jnp.argsort(probability)[:count]].set(True)


def candidate_similarities(
    images: Float[Array, "pairs d"],
    captions: Float[Array, "pairs d"],
    negatives: Float[Array, "pairs d"],
) -> Float[Array, "pairs candidates"]:
    """Similarity of each image with all captions and, in the last column, with its negative."""
    last = jnp.sum(images * negatives, axis=1, keepdims=True)
    return jnp.concatenate([images @ captions.T, last], axis=1)


def transport_cost(sims: Float[Array, "pairs candidates"]) -> Float[Array, "pairs candidates"]:
    """Cost of the transport: one minus the similarity, over its largest."""
    return (1 - sims) / jnp.max(1 - sims)


def allowed(forgotten: Bool[Array, " pairs"]) -> Bool[Array, "pairs candidates"]:
    """Allow all captions, except the own one of forgotten pairs, which may take their negative."""
    own = jnp.eye(len(forgotten), dtype=bool) & forgotten[:, None]
    return jnp.concatenate([~own, forgotten[:, None]], axis=1)


def stored_targets(forgotten: Bool[Array, " pairs"]) -> Float[Array, "pairs candidates"]:
    """The caption of each image, or the negative if the pair is forgotten, as one-hot rows."""
    kept = jnp.where(forgotten, 0.0, 1.0)
    return jnp.concatenate([jnp.diag(kept), 1 - kept[:, None]], axis=1)


def targets(
    plan: Float[Array, "n m"], stored: Float[Array, "n m"], *, share: float = 0.7
) -> Float[Array, "n m"]:
    """Mix the plan, its rows divided by their sums, with the stored targets.

    The rows of the captions' problem are no distributions, as in the authors' code: the last row of
    its stored targets, the transpose of the images', has a one per forgotten pair.

    Args:
        plan: transport plan; no row without mass.
        stored: `stored_targets` of the images, or its transpose.
        share: share of the plan, in [0, 1].

    Returns:
        Targets >= 0, without gradient.
    """
    rows = plan / jnp.sum(plan, axis=1, keepdims=True)
    return jax.lax.stop_gradient(share * rows + (1 - share) * stored)


def transport_loss(logits: Float[Array, "n m"], targets: Float[Array, "n m"]) -> Float[Array, ""]:
    """KL(targets || softmax of the rows), divided by the number of rows.

    The loss of a step is the mean of this one for the images and for the captions.

    Args:
        logits: scaled similarities; candidates in columns.
        targets: targets of the rows, >= 0.

    Returns:
        A scalar; it may be negative if rows of the targets sum to less than 1.
    """
    log_targets = jnp.log(jnp.where(targets > 0, targets, 1.0))
    return jnp.sum(targets * (log_targets - jax.nn.log_softmax(logits, axis=1))) / len(logits)


def opposite_loss(
    captions: Float[Array, "pairs d"], negatives: Float[Array, "pairs d"]
) -> Float[Array, ""]:
    """Keep the similarity of each caption and its negative between -0.7 and -0.2.

    Returns:
        The mean over pairs of the two hinges, >= 0.
    """
    sims = jnp.sum(captions * negatives, axis=1)
    return jnp.mean(jnp.maximum(sims - HIGH, 0.0) + jnp.maximum(LOW - sims, 0.0))


def cyclic_loss(
    captions: Float[Array, "pairs d"], negatives: Float[Array, "pairs d"]
) -> Float[Array, ""]:
    """Squared difference of the similarities among captions and among their negatives.

    Returns:
        The sum over all combinations, divided by the number of captions, >= 0.
    """
    difference = captions @ captions.T - negatives @ negatives.T
    return jnp.sum(difference**2) / len(captions)


def negatives_sigmoid(
    sims: Float[Array, "pairs pairs"], *, scale: float | Float[Array, ""]
) -> Float[Array, ""]:
    """SigLIP's loss with exchanged labels: an image is a positive of all other negatives.

    Args:
        sims: similarities [images, negatives], square.
        scale: factor of the similarities, > 0.

    Returns:
        The sum over all combinations, divided by the number of pairs, >= 0.
    """
    stored = jnp.eye(len(sims), dtype=bool)
    logits = scale * sims
    return jnp.sum(jax.nn.softplus(jnp.where(stored, logits, -logits))) / len(sims)
