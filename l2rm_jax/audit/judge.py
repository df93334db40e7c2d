"""From the evidence to a judgement: rate, posterior, order, and how well mismatches are found."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.audit.calibration import (
    Curve,
    Separation,
    density_ratio,
    estimate_rate,
    false_alarms,
    measure_separation,
    scale_to_mean,
)
from l2rm_jax.audit.findings import Mechanism, Rate
from l2rm_jax.audit.levels import doubts
from l2rm_jax.audit.scores import Evidence
from l2rm_jax.crossfit.histogram import separation
from l2rm_jax.methods.split import auroc

FALSE_ALARMS = 0.1  # expected share among the listed pairs
# A posterior below it says nothing of the order: with a second space of captions, or without.
SURE = 0.001, 0.01
_SIBLINGS = 2  # captions an image, on average, from which on they are compared with each other
FOUND = 0.9  # share of mismatches at which false positives are counted
MIN_AUROC = 0.9  # of the information, less its error; below it, the rate may be .20 too high
RANKING_AUROC = 0.8  # likewise: the order of the pairs is of use; vectors without a signal have .75
MAX_FALL = 0.05  # of the rate, where only the most doubtful pairs count
MAX_RATE = 0.9  # with more mismatched pairs, nothing is known of the matched ones


class Judgement(NamedTuple):
    """What the evidence says of each pair, and of all.

    Attributes:
      rate: share of pairs that are as doubtful as random ones.
      posterior_set: [pairs] probability that all captions of the image are mismatched.
      posterior_caption: [pairs] probability that this caption is, by itself.
      posterior: [pairs] probability that the pair is mismatched.
      q: [pairs] expected share of false alarms among the pairs that are as doubtful or more.
      order: [pairs] the most doubtful pair first.
      listed: how many pairs of the order have 10% false alarms.
      mechanisms: how well each kind of mismatch is found.
      cannot_tell: why the numbers are doubtful; "" if they are not.
      auroc: share of (random, matched) pairs that are told apart, less its standard error.
      ranks: whether the order can be used, even where the numbers are doubtful.
    """

    rate: Rate
    posterior_set: Float[np.ndarray, " pairs"]
    posterior_caption: Float[np.ndarray, " pairs"]
    posterior: Float[np.ndarray, " pairs"]
    q: Float[np.ndarray, " pairs"]
    order: Int[np.ndarray, " pairs"]
    listed: int
    mechanisms: list[Mechanism]
    cannot_tell: str
    auroc: float
    ranks: bool


def judge(
    evidence: Evidence,
    pair_image: Int[np.ndarray, " pairs"],
    pair_fold: Int[np.ndarray, " pairs"],
    pair_group: Int[np.ndarray, " pairs"],
    seed: int,
) -> Judgement:
    """Judge all pairs.

    The rate is that of one level, the information of single pairs. The two levels, whose own rates
    add up to less where both kinds of mismatch are there, give the posterior.

    Where the posterior is near 0, pairs are ordered by all scores if captions are compared with
    each other in a second space, else by information: a mismatch that was made by likeness in the
    only space looks right there. Where most images have one caption, a moved caption is the one
    that has a sibling, which it was chosen to resemble.

    Args:
      evidence: scores of all pairs and of known mismatches.
      pair_image: row of the image that each caption is stored with.
      pair_fold: fold of each pair.
      pair_group: group of each pair; the bootstrap draws groups.
      seed: seed of the bootstrap.
    """
    _, first, position = np.unique(pair_image, return_index=True, return_inverse=True)
    stored, wrong = evidence.stored, evidence.wrong.scores
    rate = estimate_rate(-stored.information, -wrong.information, pair_group, seed)
    found = doubts(evidence, pair_image, pair_fold)
    groups = pair_group[first], pair_group
    levels = [
        (density_ratio(*level), estimate_rate(*level, group, seed).estimate)
        for level, group in zip((found.sets, found.captions), groups, strict=True)
    ]
    has_second_space = stored.neighbours.agreement.shape[-1] > 1
    has_siblings = len(position) >= _SIBLINGS * len(first)
    scale = _Scale(*levels, sees_near=has_second_space and has_siblings)
    sets = found.sets.stored[position]
    doubt = scale.doubt(sets, found.captions.stored, stored.information)
    foreign, alone, both = scale.posteriors(sets, found.captions.stored)
    posterior = scale_to_mean(both, rate.estimate)
    order = np.lexsort((stored.information, -doubt))
    q = false_alarms(posterior, order)
    listed = int(np.max(np.flatnonzero(q[order] <= FALSE_ALARMS), initial=-1)) + 1
    least = doubt[order[listed - 1]] if listed else np.inf
    moved = {
        "image": (found.sets.null[position], found.together, wrong),
        "caption": (found.set_of_wrong, found.captions.null, wrong),
        "near": (found.set_of_near, found.near, evidence.near.scores),
    }
    mechanisms = []
    for name, (sets, captions, scores) in moved.items():
        of_moved = scale.doubt(sets, captions, scores.information)
        cosine = separation(stored.similarity, scores.similarity.ravel())
        mechanisms.append(_mechanism(name, doubt, of_moved, least, cosine, rate.estimate))
    told_apart = measure_separation(-stored.information, -wrong.information, pair_group)
    ranks = rate.high <= MAX_RATE and told_apart.auroc >= RANKING_AUROC
    return Judgement(
        rate,
        foreign,
        alone,
        posterior,
        q,
        order,
        listed,
        mechanisms,
        cannot_tell=_why_not(rate, told_apart),
        auroc=told_apart.auroc,
        ranks=ranks,
    )


class _Scale(NamedTuple):
    """What turns the doubts of both levels into probabilities and one order.

    Attributes:
      sets: density ratio of the sets, and the rate of foreign ones.
      captions: the same of single captions.
      sees_near: whether all scores order the pairs whose posterior is near 0.
    """

    sets: tuple[Curve, float]
    captions: tuple[Curve, float]
    sees_near: bool

    def posteriors(self, sets: np.ndarray, captions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Probability that the set is foreign, that the caption is misplaced, and of either."""
        (set_curve, set_rate), (caption_curve, caption_rate) = self.sets, self.captions
        foreign = set_curve.posterior(sets, set_rate)
        alone = caption_curve.posterior(captions, caption_rate)
        return foreign, alone, 1 - (1 - foreign) * (1 - alone)

    def doubt(self, sets: np.ndarray, captions: np.ndarray, information: np.ndarray) -> np.ndarray:
        """One number that orders pairs, 0 to 2: above 1 by their posterior, below by scores."""
        both = self.posteriors(sets, captions)[2]
        last = captions if self.sees_near else -information
        return np.where(both < SURE[not self.sees_near], _squash(last), 1 + both)


def _squash(doubt: np.ndarray) -> np.ndarray:
    """Map doubts to (0, 1), in the same order."""
    return 0.5 + np.arctan(doubt) / np.pi


def _mechanism(
    name: str,
    stored: Float[np.ndarray, " pairs"],
    moved: Float[np.ndarray, "pairs k"],
    least: float,
    cosine: float,
    rate: float,
) -> Mechanism:
    """Measure a kind of mismatch; what the data hold already is taken out of the stored pairs."""
    both = np.concatenate([moved.ravel(), stored])
    told_apart = auroc(both, np.arange(len(both)) < moved.size)
    bound = np.quantile(moved, 1 - FOUND)
    above = (stored >= bound).mean()
    matched = max(1 - rate, 1e-9)
    return Mechanism(
        name=name,
        auroc=_corrected(told_apart, rate),
        recall=float((moved >= least).mean()),
        false_positives=float(np.clip((above - rate * FOUND) / matched, 0, 1)),
        cosine_auroc=_corrected(cosine, rate),
    )


def _corrected(auroc: float, rate: float) -> float:
    """AUROC against the matched pairs alone: against the mismatched ones it would be one half."""
    return float(np.clip((auroc - rate / 2) / max(1 - rate, 1e-9), 0, 1))


def _why_not(rate: Rate, told_apart: Separation) -> str:
    """Why nothing can be told; "" if it can.

    The rate takes all pairs above the null's median as mismatched. A score that tells little puts
    matched pairs there, too, and the AUROC of the rest, which is below, would not show it: nothing
    below the median can have less than .75. So more is asked for, and the rate must stay about the
    same where only the most doubtful pairs count.
    """
    if rate.estimate > MAX_RATE:
        return (
            f"{rate.estimate:.0%} of the pairs fit no better than random ones, so either nearly "
            "all are mismatched, or these vectors do not show what fits"
        )
    if told_apart.auroc < MIN_AUROC:
        return (
            "the pairs that seem to be matched are told from random ones with an AUROC that may "
            f"be as low as {told_apart.auroc:.2f}, expected at least {MIN_AUROC}: there are too "
            "few pairs, or these vectors do not show what fits"
        )
    if told_apart.fall > MAX_FALL:
        return (
            f"{rate.estimate:.0%} of the pairs fit no better than random ones, but by the most "
            f"doubtful ones {rate.strict:.0%} do, so matched pairs look like random ones, too"
        )
    return ""
