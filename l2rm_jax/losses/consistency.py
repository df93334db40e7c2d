"""BiCro's labels: agreement of image and caption similarities between a pair and a clean pair.

Similar images should have similar captions. The most certain pairs of a matched batch are anchors.
Each pair is compared with the anchor whose image is the most similar: the similarity of the two
images should equal the similarity of the two captions. The same is done with captions and images
swapped. The better the two similarities agree, the likelier the pair matches.

Yang et al., "BiCro: Noisy Correspondence Rectification for Multi-modality Data via Bi-directional
Cross-modal Similarity Consistency", CVPR 2023, as in its authors' code.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.losses.ranking import unviolated_margin

SMALLEST_LABEL = 0.5  # a label up to this becomes 0


def consistency(
    images: Float[Array, "pairs image_features"],
    captions: Float[Array, "pairs caption_features"],
    anchor_images: Float[Array, "anchors image_features"],
    anchor_captions: Float[Array, "anchors caption_features"],
) -> Float[Array, " pairs"]:
    """Sum of the consistencies of each pair in both directions.

    Args:
        images: unit vectors of the images.
        captions: unit vectors of their captions.
        anchor_images: unit vectors of the anchors' images.
        anchor_captions: unit vectors of the anchors' captions.

    Returns:
        Per pair, the sum over both directions of one cosine divided by the other, whichever
        quotient is below 1; <= 2. A quotient of cosines of different sign has no lower bound.
    """
    of_images, of_captions = images @ anchor_images.T, captions @ anchor_captions.T
    return _ratio(of_images, of_captions) + _ratio(of_captions, of_images)


def matched_labels(
    consistencies: Float[Array, " pairs"],
    anchors: Int[Array, " anchors"],
    *,
    smallest: float = SMALLEST_LABEL,
) -> Float[Array, " pairs"]:
    """Labels of the batch that contains the anchors, whose labels are 1.

    Args:
        consistencies: from `consistency`.
        anchors: rows of the anchors.
        smallest: a label up to this becomes 0.

    Returns:
        One label per pair, in [0, 1].
    """
    return _cut((0.5 + consistencies / 4).at[anchors].set(1.0), smallest)


def misplaced_labels(
    consistencies: Float[Array, " pairs"],
    rest: Int[Array, " rest"],
    *,
    smallest: float = SMALLEST_LABEL,
) -> Float[Array, " pairs"]:
    """Assign `matched_labels` to the wrong pairs, except anchors, as the authors' code does.

    The first labels of the batch are written, in order, to the pairs that are not anchors.

    Args:
        consistencies: from `consistency`.
        rest: rows of the pairs that are not anchors, from `order_by_sureness`.
        smallest: a label up to this becomes 0.

    Returns:
        One label per pair, in [0, 1].
    """
    labels = (0.5 + consistencies / 4)[: len(rest)]
    return _cut(jnp.ones(len(consistencies)).at[rest].set(labels), smallest)


def mismatched_labels(
    consistencies: Float[Array, " pairs"], *, smallest: float = SMALLEST_LABEL
) -> Float[Array, " pairs"]:
    """Labels of a batch without anchors, in [0, 1]; arguments as in `matched_labels`."""
    return _cut(consistencies / 2, smallest)


def order_by_sureness(
    sims: Float[Array, "pairs pairs"], *, margin: float
) -> tuple[Int[Array, " rest"], Int[Array, " anchors"]]:
    """Rows of a batch by rising `ranking.unviolated_margin`; the last tenth (and one) are anchors.

    Args:
        sims: similarities [images, captions], square.
        margin: margin by which a pair should win, > 0.

    Returns:
        Rows of the other pairs, least certain first, and of the anchors. Ties keep their order; in
        the authors' code their order is undefined.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    order = jnp.argsort(unviolated_margin(sims, margin=margin))
    count = len(sims) - (len(sims) // 10 + 1)
    return order[:count], order[count:]


def _ratio(near, other):
    """Quotient of the cosines to the anchor that is nearest by the first; 0 if one of them is 0."""
    best = jnp.argmax(near, axis=1)[:, None]
    x, y = (jnp.take_along_axis(cosines, best, axis=1)[:, 0] for cosines in (near, other))
    nonzero = (x != 0) & (y != 0)
    x, y = jnp.where(nonzero, x, 1.0), jnp.where(nonzero, y, 1.0)
    return jnp.where(nonzero, jnp.where(x / y < 1, x / y, y / x), 0.0)


def _cut(labels, smallest):
    return jnp.clip(jnp.where(labels <= smallest, 0.0, labels), 0.0, 1.0)
