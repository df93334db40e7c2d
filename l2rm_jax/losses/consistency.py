"""Labels of doubtful pairs from trusted pairs whose image or caption is similar.

BiCro: images that are similar should have captions that are similar. Each pair is compared with the
trusted pair, its anchor, whose image is the most similar: the similarity of the two captions with
that of the two images. The same is done with captions and images swapped. The better the two
similarities agree, the likelier the pair matches. Yang et al., "BiCro: Noisy Correspondence
Rectification for Multi-modality Data via Bi-directional Cross-modal Similarity Consistency",
CVPR 2023.

SPS: a mismatched image takes over the caption of the most similar image of a trusted pair. Xie et
al., IJCAI 2025.

The functions take unit vectors of images and captions, so that dot products are cosines. Their
results have no gradient.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.losses.ranking import unviolated_margin

_SMALLEST_LABEL = 0.5  # SPS takes lower labels for 0


def anchor_count(pairs: int) -> int:
    """How many pairs of a batch are anchors: a tenth, rounded down, and one."""
    return pairs // 10 + 1


def anchor_order(sims: Float[Array, "pairs pairs"], *, margin: float) -> Int[Array, " pairs"]:
    """Rows of the pairs of a batch by falling `unviolated_margin`; the first ones are the anchors.

    Args:
        sims: similarities [images, captions], square.
        margin: by how much a pair should win, > 0.

    Returns:
        A permutation of the rows; pairs of equal score, often 0, keep their order.

    Raises:
        ValueError: if ``sims`` is not a square matrix.
    """
    scores = jax.lax.stop_gradient(unviolated_margin(sims, margin=margin))
    return jnp.argsort(scores, descending=True, stable=True)


def agreement(
    images: Float[Array, "pairs image_features"],
    captions: Float[Array, "pairs caption_features"],
    anchor_images: Float[Array, "anchors image_features"],
    anchor_captions: Float[Array, "anchors caption_features"],
) -> Float[Array, " pairs"]:
    """How consistent the similarities of each pair's image and caption to the anchors are.

    Args:
        images: unit vectors of the images.
        captions: unit vectors of their captions.
        anchor_images: unit vectors of the anchors' images.
        anchor_captions: unit vectors of the anchors' captions.

    Returns:
        The mean over both directions of the smaller cosine divided by the larger one, <= 1.
        Negative if exactly one of the cosines is, without a lower bound.
    """
    of_images, of_captions = images @ anchor_images.T, captions @ anchor_captions.T
    total = 0.0
    for near, other in ((of_images, of_captions), (of_captions, of_images)):
        nearest = jnp.argmax(near, axis=1)[:, None]
        x, y = (jnp.take_along_axis(cosines, nearest, axis=1)[:, 0] for cosines in (near, other))
        total += _ratio(x, y)
    return jax.lax.stop_gradient(total / 2)


def labels_of_matched(
    images: Float[Array, "pairs image_features"],
    captions: Float[Array, "pairs caption_features"],
    order: Int[Array, " pairs"],
    *,
    threshold: float,
    aligned: bool = True,
) -> Float[Array, " pairs"]:
    """BiCro's labels of a batch of pairs that the mixture calls matched.

    The anchors get label 1, the others (1 + `agreement`) / 2.

    Args:
        images: unit vectors of the images.
        captions: unit vectors of their captions.
        order: rows from `anchor_order`.
        threshold: labels up to this become 0; in [0, 1].
        aligned: whether each pair gets its own label. The public code gives the label of pair k of
            the batch to the k-th pair of ``order`` behind the anchors: ``aligned=False``.

    Returns:
        One label per pair, in [0, 1].
    """
    anchors, rest = jnp.split(order, [anchor_count(len(order))])
    agree = agreement(images, captions, images[anchors], captions[anchors])
    labels = _without_doubtful(0.5 + agree / 2, threshold)
    if not aligned:
        labels = labels.at[rest].set(labels[: len(rest)])
    return labels.at[anchors].set(1.0)


def labels_of_mismatched(
    images: Float[Array, "pairs image_features"],
    captions: Float[Array, "pairs caption_features"],
    anchor_images: Float[Array, "anchors image_features"],
    anchor_captions: Float[Array, "anchors caption_features"],
    *,
    threshold: float,
) -> Float[Array, " pairs"]:
    """BiCro's labels of a batch of pairs that the mixture calls mismatched: their `agreement`.

    Args:
        images: unit vectors of the images.
        captions: unit vectors of their captions.
        anchor_images: unit vectors of the images of the anchors of a matched batch.
        anchor_captions: unit vectors of the anchors' captions.
        threshold: labels up to this become 0; in [0, 1].

    Returns:
        One label per pair, in [0, 1].
    """
    return _without_doubtful(agreement(images, captions, anchor_images, anchor_captions), threshold)


def nearest_image(
    images: Float[Array, "pairs features"], trusted: Float[Array, "others features"]
) -> tuple[Int[Array, " pairs"], Float[Array, " pairs"]]:
    """The most similar trusted image of each image, whose caption it takes over (SPS).

    Args:
        images: unit vectors of images with doubtful captions.
        trusted: unit vectors of images with trusted captions.

    Returns:
        Rows of ``trusted``, and the cosines with them in [-1, 1].
    """
    cosines = jax.lax.stop_gradient(images @ trusted.T)
    return jnp.argmax(cosines, axis=1), jnp.max(cosines, axis=1)


def labels_of_taken_over(
    probability: Float[Array, " pairs"], cosines: Float[Array, " pairs"]
) -> Float[Array, " pairs"]:
    """SPS's labels of images with the caption of another image.

    Args:
        probability: `contrastive.matched_probability` of the new pairs in their batch.
        cosines: cosines from `nearest_image`.

    Returns:
        The products, in [0.5, 1]; smaller ones become 0.
    """
    labels = jax.lax.stop_gradient(probability * cosines)
    return jnp.where(labels < _SMALLEST_LABEL, 0.0, labels)


def _ratio(x, y):
    """x / y or y / x, whichever is below 1; 0 if either is 0."""
    nonzero = (x != 0) & (y != 0)
    x, y = jnp.where(nonzero, x, 1.0), jnp.where(nonzero, y, 1.0)
    return jnp.where(nonzero, jnp.where(x / y < 1, x / y, y / x), 0.0)


def _without_doubtful(labels, threshold):
    return jnp.clip(jnp.where(labels <= threshold, 0.0, labels), 0.0, 1.0)
