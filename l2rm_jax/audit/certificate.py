"""Certify the kept pairs: limit the share of wrong ones, by decisions on a uniform sample of them.

The sets that can be certified are nested: the least suspicious 50%, 55%, ..., 100% of the kept
pairs. They are tested in this order, each by an exact binomial test at a level of 10%, up to the
first that fails. As the order is fixed beforehand, the certified set breaks its promise with a
probability of at most 10%, without a correction for several tests.

References:
    Clopper and Pearson, The Use of Confidence or Fiducial Limits Illustrated in the Case of the
    Binomial, Biometrika 1934.
    Maurer, Hothorn and Lehmacher, Multiple Comparisons in Drug Clinical Trials and Preclinical
    Assays: A-Priori Ordered Hypotheses, 1995.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import bdtr, betaincinv

from l2rm_jax.errors import ConfigError
from l2rm_jax.judging.judgement import KEPT

ERROR = 0.1  # probability of a certificate that does not hold
_TWENTIETHS = np.arange(10, 21)  # of the kept pairs, in each set


class Certificate(NamedTuple):
    """Result of the tests.

    Attributes:
      share: largest share of wrong pairs that was asked for.
      pairs: number of the least suspicious kept pairs that are certified; 0 if no set passed.
      decided: number of decided kept pairs.
      half_decided: number of these in the least suspicious half.
      half_wrong: number of these that are wrong or unsure.
      half_at_most: upper 90% confidence limit of the share of wrong pairs in this half.
    """

    share: float
    pairs: int
    decided: int
    half_decided: int
    half_wrong: int
    half_at_most: float


def rank_kept(
    order: Int[np.ndarray, " pairs"], kind: Int[np.ndarray, " pairs"]
) -> Int[np.ndarray, " kept"]:
    """Return the rows of the kept pairs, the least suspicious one first.

    Args:
      order: all pairs, the most suspicious one first (`Judgement.order`).
      kind: kind of each pair (`Judgement.kind`).
    """
    return order[np.isin(kind[order], KEPT)][::-1]


def nested_sizes(kept: int) -> Int[np.ndarray, " sets"]:
    """Return the sizes of the sets that can be certified, of `kept` pairs, ascending."""
    return -(-kept * _TWENTIETHS // 20)


def fewest_decisions(share: float) -> int:
    """Return how many pairs of the smallest set must be decided, so that it can pass at all.

    Args:
      share: largest share of wrong pairs, between 0 and 1.
    """
    return math.ceil(math.log(ERROR) / math.log1p(-share))


def check_size(decide: int, share: float) -> None:
    """Check that a review is large enough for its certificate, if it has one.

    Args:
      decide: number of pairs to decide.
      share: largest share of wrong pairs, below 1; 0: no certificate.

    Raises:
      ConfigError: half of the kept pairs in the review are too few to pass.
    """
    if share and decide < (fewest := -(-8 * fewest_decisions(share) // 3)):
        raise ConfigError(
            f"config.audit.decide: found {decide}, expected at least {fewest} with "
            f"config.audit.certify={share:g}",
            hint=f"--config.audit.decide={fewest}",
        )


def draw_sample(
    ranked: Int[np.ndarray, " kept"], pairs: int, n: int, share: float, seed: int
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Draw pairs for a review with a certificate, without replacement and in random order.

    Three quarters are drawn uniformly from the kept pairs, the rest from the others. The draw of
    kept pairs continues until enough are in the smallest set. It ends before the next pair of that
    set: ending at one would draw too many pairs of the set that suits the certificate best.

    Args:
      ranked: the kept pairs, the least suspicious one first.
      pairs: number of all pairs.
      n: number of pairs to draw.
      share: largest share of wrong pairs, between 0 and 1.
      seed: seed of the draw.

    Returns:
      The pairs, and how many pairs each represents: one over the probability that it was drawn.
    """
    rng = np.random.default_rng(seed)
    place = rng.permutation(len(ranked))
    smallest, fewest = np.flatnonzero(place < nested_sizes(len(ranked))[0]), fewest_decisions(share)
    enough = smallest[fewest] if len(smallest) > fewest else len(ranked)
    others = np.setdiff1d(np.arange(pairs), ranked)
    rest = min(round(n / 4), len(others))
    drawn = ranked[place[: max(n - rest, enough)]], rng.choice(others, rest, replace=False)
    sizes, counts = (len(ranked), len(others)), [*map(len, drawn)]
    order = rng.permutation(sum(counts))
    weight = np.repeat(np.divide(sizes, np.maximum(counts, 1)), counts)
    return np.concatenate(drawn)[order], weight[order]


def certify(
    ranked: Int[np.ndarray, " kept"],
    rows: Int[np.ndarray, " n"],
    is_wrong: Bool[np.ndarray, " n"],
    share: float,
) -> Certificate:
    """Test the nested sets of kept pairs, from the smallest, up to the first that fails.

    Args:
      ranked: the kept pairs, the least suspicious one first.
      rows: all pairs of the sample; the tests leave out those that are not kept.
      is_wrong: whether each was decided to be wrong or unsure.
      share: largest share of wrong pairs, between 0 and 1.
    """
    sizes, inside = nested_sizes(len(ranked)), _inside(ranked, rows)
    decided, wrong = inside.sum(axis=0), (inside & is_wrong[:, None]).sum(axis=0)
    passes = bdtr(wrong, decided, share) <= ERROR
    passed = int(np.argmin(np.append(passes, False)))
    pairs = int(sizes[passed - 1]) if passed else 0
    n, found = int(decided[0]), int(wrong[0])
    at_most = float(betaincinv(found + 1, n - found, 1 - ERROR)) if found < n else 1.0
    return Certificate(share, pairs, int(decided[-1]), n, found, at_most)


def _inside(
    ranked: Int[np.ndarray, " kept"], rows: Int[np.ndarray, " n"]
) -> Bool[np.ndarray, "n sets"]:
    """Return whether each pair is in each of the nested sets."""
    place = np.full(max(ranked.max(initial=0), rows.max(initial=0)) + 1, len(ranked))
    place[ranked] = np.arange(len(ranked))
    return place[rows, None] < nested_sizes(len(ranked))


def goal_sentence(
    ranked: Int[np.ndarray, " kept"], rows: Int[np.ndarray, " n"], share: float
) -> str:
    """Return a sentence on the decisions that a certificate needs, for before the first decision.

    Args:
      ranked: the kept pairs, the least suspicious one first.
      rows: all pairs of the review.
      share: largest share of wrong pairs, between 0 and 1.
    """
    fewest = fewest_decisions(share)
    half, *_, kept = _inside(ranked, rows).sum(axis=0).tolist()
    name = f"A certificate (at most {100 * share:g}% wrong pairs)"
    if half < fewest:
        return (
            f"{name} is impossible: found {half:,} pairs in the least suspicious half of the kept "
            f"pairs, expected at least {fewest:,}."
        )
    return (
        f"{name} requires all decisions of the review, which has {kept:,} kept pairs (at least "
        f"{2 * fewest:,} required), {half:,} of them in the least suspicious half (at least "
        f"{fewest:,} required)."
    )


def certificate_sentence(found: Certificate, certified: int, by: str) -> str:
    """Return the sentence that states the promise, or why there is none.

    Args:
      found: the result of the tests.
      certified: number of the certified pairs that were not decided to be wrong.
      by: who decided: "eye", or the names of other judges.
    """
    asked = f"{100 * found.share:g}%"
    if found.pairs:
        return (
            f"At most {asked} of the {certified:,} certified pairs are wrong (90% confidence, "
            f"{found.decided:,} kept pairs decided by {by})."
        )
    return (
        f"No set of kept pairs can be certified at {asked}: {found.half_wrong:,} of "
        f"{found.half_decided:,} pairs decided by {by} in the least suspicious half are wrong or "
        f"unsure, so up to {math.ceil(100 * found.half_at_most)}% of that half may be wrong (90% "
        "confidence)."
    )
