"""Rematch images and captions of suspicious pairs by the transport plan of a linear model.

It is L2RM's rematching in closed form, after a judgement by models that have not seen the pairs.
The model of the plan has seen all pairs; nothing is judged by it.

References:
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
"""

import numpy as np
from jaxtyping import Float

from l2rm_jax.data.pairs import SUSPICIOUS, Pairs
from l2rm_jax.data.train_pairs import Rematched
from l2rm_jax.data.vectors import as_rows
from l2rm_jax.judging.content_keys import Keys, vector_keys
from l2rm_jax.judging.transport_em import fit_by_transport, plan_ridge, stored_pairs
from l2rm_jax.linear.threads import limit_threads

_FEWEST = 2  # suspicious pairs to rematch
_SMALLEST_SHARE = 0.02  # of a caption: smaller shares are dropped


def rematch(pairs: Pairs, posterior: Float[np.ndarray, " pairs"]) -> Rematched:
    """Rematch captions with the images that the plan moves them to.

    Args:
      pairs: all pairs.
      posterior: probability that each pair is mismatched.

    Returns:
      The rematched pairs, sorted by image and caption. The weight of a pair is the share of the
      caption that goes to the image, times the probability that the caption was mismatched. The
      result is empty with fewer than two suspicious pairs.
    """
    nothing = np.zeros(0, int)
    if (posterior > SUSPICIOUS).sum() < _FEWEST:
        return Rematched(nothing, nothing, np.zeros(0))
    pairs = as_rows(pairs)
    captions = vector_keys(pairs.captions)
    keys = Keys(vector_keys(pairs.images), captions, captions)
    rows, images, position = keys.sort(np.arange(len(pairs)), pairs.image_of)
    with limit_threads():
        stored = stored_pairs(images, rows, position, keys.image)
        weights = np.maximum(1 - posterior[stored.captions], 1e-6)
        # Weak features as well are rematched better with the ridge of all others (`scenes`, 40% of
        # the sets swapped: 34% of the moved captions reach their image, with the weak ridge 23%).
        ridge = plan_ridge(len(weights), weak=False)
        plan = fit_by_transport(pairs.images, pairs.captions, stored, weights, ridge).plan
    image, caption = stored.images[plan.coords[0]], stored.captions[plan.coords[1]]
    is_new = (image != pairs.image_of[caption]) & (plan.data > _SMALLEST_SHARE)
    image, caption, share = image[is_new], caption[is_new], plan.data[is_new]
    order = np.lexsort((caption, image))
    weight = np.minimum(share, 1) * posterior[caption]
    return Rematched(image[order], caption[order], weight[order].astype(np.float64))
