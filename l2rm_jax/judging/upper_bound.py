"""Bound the share of mismatched pairs from above, if captions were swapped between similar images.

A caption of a similar image fits nearly as well as the caption that it replaces. The rate compares
with random pairs and so counts few such mismatches. Two kinds of known mismatches give a bound:
captions moved to random images, and captions moved to images that are hard to tell from their own.
"""

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.judging.rate import Rate

# Shares of the hard known mismatches above a threshold. With smaller shares, only the most
# suspicious of them count, and real mismatches may include fewer such pairs.
_TAILS = 0.1, 0.2, 0.3, 0.5
_ERRORS = 1.645  # standard errors from an estimate to the upper end of its 90% interval


def most_mismatched(
    suspicion: Float[np.ndarray, " pairs"],
    null: Float[np.ndarray, "..."],
    hard: Float[np.ndarray, " pairs"],
    trust: Float[np.ndarray, " pairs"],
    group: Int[np.ndarray, " pairs"],
    rate: Rate,
) -> float:
    """Return the largest share of mismatched pairs that is consistent with the suspicion scores.

    All pairs above two thresholds are attributed to captions of random and of similar images. One
    threshold is the median of the null; the other is lower, with a fixed share of the hard known
    mismatches above it. The share of each kind above each threshold is known, so two equations give
    the numbers of both kinds: Storey's estimator with two nulls. Matched pairs above the lower
    threshold inflate the sum, so the smallest result over several thresholds is used, each with its
    standard error over independent groups.

    The bound holds if the wrong images are at most as hard to tell from the caption's own image as
    the images of `hard`.

    Args:
      suspicion: scores of the pairs.
      null: scores of captions with random images.
      hard: score of each caption with an image that is hard to tell from its own.
      trust: weight of each hard score: probability that the captions of this image are its own.
      group: group of each pair.
      rate: share of pairs that match no better than random pairs (`estimate_rate`).

    Returns:
      The share, between the upper end of the rate and 1.

    References:
        Storey, A Direct Approach to False Discovery Rates, JRSS B 2002.
    """
    trust, position = trust / trust.sum(), np.unique(group, return_inverse=True)[1]
    order = np.argsort(hard, kind="stable")
    place = np.searchsorted(np.cumsum(trust[order]), 1 - np.array(_TAILS))
    ends = [1.0]
    for lower in hard[order[np.minimum(place, len(order) - 1)]]:
        limits = np.array([np.median(null), lower])
        above, hard_above = suspicion[:, None] > limits, hard[:, None] > limits
        share, of_hard = above.mean(axis=0), trust @ hard_above
        known = np.column_stack([[(null > limit).mean() for limit in limits], of_hard])
        if np.linalg.det(known) <= 0:
            continue  # hard mismatches are as suspicious as random ones
        both = np.linalg.solve(known.T, [1, 1])  # weight in the sum of each share above a limit
        similar = np.linalg.solve(known, share)[1]
        error = (above - share) / len(suspicion) - similar * trust[:, None] * (hard_above - of_hard)
        deviation = np.sqrt(np.sum(np.bincount(position, error @ both) ** 2))
        ends.append(share @ both + _ERRORS * deviation)
    return float(np.clip(min(ends), rate.high, 1))
