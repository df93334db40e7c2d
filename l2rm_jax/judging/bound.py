"""How many pairs may be mismatched at most, if captions were swapped among similar images.

A caption of a similar image fits nearly as well as the caption that it replaces, so the rate, which
compares with random pairs, counts few such mismatches. Two kinds of known mismatches say how many
there may be: captions moved to random images, and to images that are hard to tell from their own.
"""

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.judging.rate import LAMBDAS, Rate

# Shares of the hard known mismatches above a threshold. With fewer, the few most doubtful ones
# decide, and real mismatches may have fewer of these.
_TAILS = 0.2, 0.3, 0.5
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

    A share `rate` of the pairs is mismatched at random, and so is known how many of these are above
    a threshold. All others there are put down to captions of similar images: their share, divided
    by that of the hard known mismatches above the threshold, is how many such pairs there may be in
    all. It is Storey's estimator with another null. As matched pairs are above the threshold too,
    this is too high, so the least of several thresholds is taken, each with its standard error.
    That is of sums over groups, which are independent of each other.

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
    levels, position = np.array(LAMBDAS), np.unique(group, return_inverse=True)[1]
    is_random = (doubt[:, None] > np.quantile(null, levels)) / (1 - levels)
    random_share = is_random.mean(axis=0)
    used = np.argmin(np.abs(random_share - rate.estimate))  # by `estimate_rate`
    is_random, random_share = is_random[:, used], random_share[used]
    trust = trust / trust.sum()
    order = np.argsort(hard, kind="stable")
    place = np.searchsorted(np.cumsum(trust[order]), 1 - np.array(_TAILS))
    ends = []
    for threshold in hard[order[np.minimum(place, len(order) - 1)]]:
        above, hard_above = doubt > threshold, hard > threshold
        share, of_hard = above.mean(), max(float(trust @ hard_above), 1e-9)
        of_null = float((null > threshold).mean())
        more = max(share - random_share * of_null, 0.0) / of_hard
        # How much each pair adds to the errors of the three shares, and these to the sum.
        error = (above - share + (of_hard - of_null) * (is_random - random_share)) / len(doubt)
        error -= more * trust * (hard_above - of_hard)
        deviation = np.sqrt(np.sum(np.bincount(position, error) ** 2)) / of_hard
        ends.append(random_share + more + _ERRORS * deviation)
    return float(np.clip(min(ends), rate.high, 1))
