"""Zero-shot similarities: compare vectors of one space, such as CLIP's, without training."""

import numpy as np
from jaxtyping import Float

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.errors import DataError

_BLOCK = 1024  # images or captions read at once


def cosines(pairs: TrainPairs) -> Float[np.ndarray, "I M"]:
    """Cosine of every image with every caption; several vectors are averaged first.

    Args:
      pairs: a split whose captions are vectors.

    Raises:
      DataError: image and caption vectors have different sizes, a mean is zero, or a value is not
        finite.
    """
    images, captions = pairs.images, pairs.tokens
    sizes = images.shape[-1], captions.shape[-1]
    if sizes[0] != sizes[1]:
        raise DataError(
            f"{images.name}, {captions.name}: found vectors of {sizes[0]} and {sizes[1]} "
            "dimensions, expected vectors of one space with the same size"
        )
    return unit_means(images) @ unit_means(captions).T


def unit_means(features: RegionFeatures) -> Float[np.ndarray, "N D"]:
    """Directions of the means of each row's vectors.

    Raises:
      DataError: a mean is zero, or a value is not finite.
    """
    starts = range(0, len(features), _BLOCK)
    blocks = (np.arange(start, min(start + _BLOCK, len(features))) for start in starts)
    # The sum of a row's vectors has the direction of their mean.
    means = np.concatenate([features.rows(block).sum(axis=1) for block in blocks])
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    if not norms.all():
        row = int(np.flatnonzero(norms[:, 0] == 0)[0])
        raise DataError(f"{features.name}: row {row}: found a zero mean, expected a direction")
    return means / norms
