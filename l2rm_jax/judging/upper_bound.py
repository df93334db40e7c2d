"""How many pairs may be mismatched at most, if captions were swapped among similar images.

A caption of a similar image fits nearly as well as the caption that it replaces, so the rate, which
compares with random pairs, counts few such mismatches. Two kinds of known mismatches say how many
there may be: captions moved to random images, and to images that are hard to tell from their own.
"""

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.judging.rate import Rate

# Shares of the hard known mismatches above a threshold. With fewer, the few most doubtful ones
# decide, and real mismatches may have fewer of these.
_TAILS = 0.1, 0.2, 0.3, 0.5
_ERRORS = 1.645  # standard errors from an estimate to the upper end of its 90% interval


def most_mismatched(
    doubt: Float[np.ndarray, " pairs"],
    null: Float[np.ndarray, "..."],
    hard: Float[np.ndarray, " pairs"],
    trust: Float[np.ndarray, " pairs"],
    group: Int[np.ndarray, " pairs"],
    rate: Rate,
) -> float:
    """Return the largest share of mismatched pairs that agrees with the doubts.

    All pairs above two limits are put down to captions of random and of similar images. One limit
    is the median of the null, the other is lower: a share of the hard known mismatches is above.
    The share of each kind above each limit is known, so two equations say how many there are of
    both kinds. It is Storey's estimator with two nulls. As matched pairs are above the lower limit
    too, the sum is too high; the least of several limits is taken, each with its standard error, as
    groups are independent.

    It holds if captions were swapped among images that are as hard to tell from the caption's own
    as those of `hard`, or easier.

    Args:
      doubt: of the pairs.
      null: of captions with random images.
      hard: of each caption with an image that is hard to tell from its own.
      trust: weight of each: probability that the captions stored with this image are its own.
      group: group of each pair.
      rate: of pairs that are as doubtful as random ones (`estimate_rate`).

    Returns:
      The share, from the high end of the rate to 1.

    References:
        Storey, A Direct Approach to False Discovery Rates, JRSS B 2002.
    """
    trust, position = trust / trust.sum(), np.unique(group, return_inverse=True)[1]
    order = np.argsort(hard, kind="stable")
    place = np.searchsorted(np.cumsum(trust[order]), 1 - np.array(_TAILS))
    ends = [1.0]
    for lower in hard[order[np.minimum(place, len(order) - 1)]]:
        limits = np.array([np.median(null), lower])
        above, hard_above = doubt[:, None] > limits, hard[:, None] > limits
        share, of_hard = above.mean(axis=0), trust @ hard_above
        known = np.column_stack([[(null > limit).mean() for limit in limits], of_hard])
        if np.linalg.det(known) <= 0:
            continue  # the hard ones are as doubtful as random ones
        both = np.linalg.solve(known.T, [1, 1])  # what each share above a limit adds to the sum
        similar = np.linalg.solve(known, share)[1]
        error = (above - share) / len(doubt) - similar * trust[:, None] * (hard_above - of_hard)
        deviation = np.sqrt(np.sum(np.bincount(position, error @ both) ** 2))
        ends.append(share @ both + _ERRORS * deviation)
    return float(np.clip(min(ends), rate.high, 1))
