"""From the evidence to numbers: rate, posteriors, order, and how well mismatches are found."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt64

from l2rm_jax.auroc import binned_auroc
from l2rm_jax.judging.bound import most_mismatched
from l2rm_jax.judging.folds import Folds
from l2rm_jax.judging.levels import doubts
from l2rm_jax.judging.rate import (
    Curve,
    Rate,
    density_ratio,
    estimate_rate,
    false_alarms,
    scale_to_mean,
    share_of_random,
    told_apart,
)
from l2rm_jax.judging.scores import Evidence

FALSE_ALARMS = 0.1  # expected share among the listed pairs
# A posterior below it says nothing of the order: with a second space of captions, or without.
SURE = 0.001, 0.01
_SIBLINGS = 2  # captions an image, on average, from which on they are compared with each other
FOUND = 0.9  # share of mismatches at which false positives are counted
MIN_AUROC = 0.9  # of the information, less its error; below it, the rate may be too high
RANKING_AUROC = 0.8  # likewise: the order of the pairs is of use
_MOST = 0.98  # mean of the posterior: even where nothing fits, a few pairs stay to learn from
MAX_RATE = 0.9  # with more mismatched pairs, nothing is known of the matched ones


class Mechanism(NamedTuple):
    """How well one kind of mismatch is found, measured on pairs that were mismatched on purpose.

    Attributes:
      name: `image` (all captions of an image moved), `caption` (one caption moved) or `near` (one
        caption moved to an image whose captions are similar).
      auroc: share of (mismatched, matched) pairs that are told apart, corrected for the mismatched
        pairs that the data hold already.
      recall: share of these mismatched pairs that are in the list of doubted pairs.
      false_positives: share of stored pairs above the doubt at which 90% of these are found.
      cosine_auroc: `auroc` of the detector's similarity alone: the cosine, for the linear one.
    """

    name: str
    auroc: float
    recall: float
    false_positives: float
    cosine_auroc: float


class Posterior(NamedTuple):
    """What the evidence says of each pair, and of all; fields as in `Judgement`."""

    rate: Rate
    posterior_set: Float[np.ndarray, " pairs"]
    posterior_caption: Float[np.ndarray, " pairs"]
    posterior: Float[np.ndarray, " pairs"]
    q: Float[np.ndarray, " pairs"]
    order: Int[np.ndarray, " pairs"]
    listed: int
    mechanisms: tuple[Mechanism, ...]
    cannot_tell: str
    auroc: float
    ranks: bool
    at_most: float


def find_posterior(
    evidence: Evidence, folds: Folds, pair_key: UInt64[np.ndarray, " pairs"], seed: int
) -> Posterior:
    """Judge all pairs by the evidence.

    The rate is that of one level, the information of single pairs. The two levels, whose own rates
    add up to less where both kinds of mismatch are there, give the posterior.

    Where the posterior is near 0, pairs are ordered by all scores if captions are compared with
    each other in a second space, else by information: a mismatch that was made by likeness in the
    only space looks right there. Where most images have one caption, a moved caption is the one
    that has a sibling, which it was chosen to resemble.

    Args:
      evidence: scores of all pairs and of known mismatches.
      folds: image, fold and group of each pair; the bootstrap draws groups.
      pair_key: hash of the content of each pair.
      seed: seed of the bootstrap.
    """
    pair_image, pair_group = folds.pair_image, folds.group_of_pair
    images, position = np.unique(pair_image, return_inverse=True)
    stored, wrong = evidence.stored, evidence.wrong.scores
    rate = estimate_rate(-stored.information, -wrong.information, pair_group, seed)
    found = doubts(evidence, pair_image, folds.of_pair, pair_key)
    levels = [
        (density_ratio(*level), share_of_random(*level)) for level in (found.sets, found.captions)
    ]
    has_second_space = stored.neighbours.agreement.shape[-1] > 1
    has_siblings = len(position) >= _SIBLINGS * len(images)
    scale = _Scale(*levels, sees_near=has_second_space and has_siblings)
    sets = found.sets.stored[position]
    doubt = scale.doubt(sets, found.captions.stored, stored.information)
    foreign, alone, both = scale.posteriors(sets, found.captions.stored)
    posterior = scale_to_mean(both, min(rate.estimate, _MOST))
    order = np.lexsort((pair_key, stored.information, -doubt))
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
        cosine = binned_auroc(stored.model.similarity, scores.model.similarity.ravel())
        mechanisms.append(_mechanism(name, doubt, of_moved, least, cosine, rate.estimate))
    auroc = told_apart(-stored.information, -wrong.information, pair_group, rate.estimate)
    return Posterior(
        rate,
        foreign,
        alone,
        posterior,
        q,
        order,
        listed,
        tuple(mechanisms),
        cannot_tell=_why_not(rate, auroc),
        auroc=auroc,
        ranks=rate.high <= MAX_RATE and auroc >= RANKING_AUROC,
        at_most=most_mismatched(
            *(-stored.information, -wrong.information, -evidence.hard.information),
            *(_trust(posterior, pair_image)[evidence.hard.image], pair_group, rate),
        ),
    )


def _trust(
    posterior: Float[np.ndarray, " pairs"], pair_image: Int[np.ndarray, " pairs"]
) -> Float[np.ndarray, " images"]:
    """Mean probability that the captions of each image are its own; images without any have 0."""
    counts = np.bincount(pair_image)
    return np.bincount(pair_image, 1 - posterior) / np.maximum(counts, 1)


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
    apart = binned_auroc(moved.ravel(), stored)
    bound = np.quantile(moved, 1 - FOUND)
    above = (stored >= bound).mean()
    matched = max(1 - rate, 1e-9)
    return Mechanism(
        name=name,
        auroc=_corrected(apart, rate),
        recall=float((moved >= least).mean()),
        false_positives=float(np.clip((above - rate * FOUND) / matched, 0, 1)),
        cosine_auroc=_corrected(cosine, rate),
    )


def _corrected(auroc: float, rate: float) -> float:
    """AUROC against the matched pairs alone: against the mismatched ones it would be one half."""
    return float(np.clip((auroc - rate / 2) / max(1 - rate, 1e-9), 0, 1))


def _why_not(rate: Rate, auroc: float) -> str:
    """Why the number cannot be told; "" if it can.

    Matched pairs that score like random ones count as mismatched. Then the rate is too high, and
    the rest, which counts as matched, is told from random pairs less well.
    """
    if rate.estimate > MAX_RATE:
        return (
            f"{rate.estimate:.0%} of the pairs fit no better than random ones, so either nearly "
            "all are mismatched, or these vectors do not show what fits"
        )
    if auroc < MIN_AUROC:
        return (
            "the pairs that seem to be matched are told from random ones with an AUROC that may "
            f"be as low as {auroc:.2f}, expected at least {MIN_AUROC}: there are too few pairs, or "
            "these vectors do not show what fits"
        )
    return ""
