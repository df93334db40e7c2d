"""Turn the evidence into a judgement: rate, posteriors, ranking, and detection quality."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt64

from l2rm_jax.auroc import binned_auroc
from l2rm_jax.judging.classify import conflicts, kinds
from l2rm_jax.judging.folds import Folds
from l2rm_jax.judging.judgement import Judgement, Mechanism, Provenance, empty_fields
from l2rm_jax.judging.rate import (
    Curve,
    Rate,
    density_ratio,
    estimate_rate,
    false_alarms,
    most_mismatched,
    scale_to_mean,
    share_of_random,
    told_apart,
)
from l2rm_jax.judging.scores import Evidence
from l2rm_jax.judging.sibling_swaps import log_ratio, swap_rates
from l2rm_jax.judging.suspicion import suspicion_scores
from l2rm_jax.version import __version__

FALSE_ALARMS = 0.1  # expected share among the listed pairs
# Below these posteriors, rank by raw score. First value: with a second caption embedding.
SURE = 0.001, 0.01
_SIBLINGS = 2  # captions per image, on average, from which on siblings are compared
FOUND = 0.9  # share of mismatches at which false positives are counted
MIN_AUROC = 0.9  # of the information, less its standard error; below it, the rate may be too high
RANKING_AUROC = 0.8  # likewise; below it, the ranking of the pairs is not usable
_MOST = 0.98  # mean of the posterior: even if nothing fits, a few pairs remain to learn from
MAX_RATE = 0.9  # with more mismatched pairs, the matched ones cannot be characterised


def find_posterior(
    evidence: Evidence,
    folds: Folds,
    pair_key: UInt64[np.ndarray, " pairs"],
    weights: Float[np.ndarray, "folds pairs"],
    seed: int,
    by: str,
) -> Judgement:
    """Judge all pairs by the evidence; without proposals and groups (`empty_fields`).

    The rate is estimated from the information of single pairs. The posterior combines swapped sets,
    if there are some, and captions swapped alone. Without swapped sets, an image with four of five
    captions swapped would be called one, and its last caption would be condemned with it.

    Where the posterior is near 0, pairs are ranked by all scores if captions are compared with
    each other in a second embedding, else by information: a caption chosen for its similarity in
    the only embedding looks right there. If most images have one caption, only a moved caption has
    a sibling, and it was chosen to resemble that sibling.

    Args:
      evidence: scores of all pairs and of known mismatches.
      folds: image, fold and group of each pair; the bootstrap draws groups.
      pair_key: hash of the content of each pair.
      weights: probability that each pair is matched, by models that have seen neither it nor the
        fold that is judged with it; 0 for the pairs of that fold.
      seed: seed of the bootstrap, and of the folds.
      by: name of the scorer.
    """
    image_of, pair_group = folds.image_of, folds.group_of_pair
    images, position = np.unique(image_of, return_inverse=True)
    stored, wrong = evidence.stored, evidence.wrong.scores
    rate = estimate_rate(-evidence.apart.stored, -evidence.apart.wrong, pair_group, seed)
    found = suspicion_scores(evidence, image_of, folds.of_pair, pair_key, weights)
    levels = [
        (density_ratio(*level), share_of_random(*level)) for level in (found.sets, found.captions)
    ]
    ratio = log_ratio(stored.information, wrong.information, rate.estimate)
    if len(images) < len(position) and not swap_rates(ratio, position).has_sets:
        levels[0] = levels[0][0], 0.0
    has_second_space = stored.neighbours.agreement.shape[-1] > 1
    has_siblings = len(position) >= _SIBLINGS * len(images)
    scale = _Scale(*levels, sees_near=has_second_space and has_siblings)
    sets = found.sets.stored[position]
    suspicion = scale.suspicion(sets, found.captions.stored, stored.information)
    together, alone, both = scale.posteriors(sets, found.captions.stored)
    posterior = scale_to_mean(both, min(rate.estimate, _MOST))
    order = np.lexsort((pair_key, stored.information, -suspicion))
    q = false_alarms(posterior, order)
    listed = int(np.max(np.flatnonzero(q[order] <= FALSE_ALARMS), initial=-1)) + 1
    least = suspicion[order[listed - 1]] if listed else np.inf
    moved = {
        "image": (found.sets.null[position], found.together, wrong),
        "caption": (found.set_of_wrong, found.captions.null, wrong),
        "near": (found.set_of_near, found.near, evidence.near.scores),
    }
    mechanisms = []
    for name, (sets, captions, scores) in moved.items():
        of_moved = scale.suspicion(sets, captions, scores.information)
        cosine = binned_auroc(stored.model.similarity, scores.model.similarity.ravel())
        mechanisms.append(_mechanism(name, suspicion, of_moved, least, cosine, rate.estimate))
    auroc = told_apart(-stored.information, -wrong.information, pair_group, rate.estimate)
    kind = kinds(posterior, together > alone, evidence.contrast, image_of)
    return Judgement(
        image_of=image_of,
        fold=folds.of_pair,
        group=pair_group,
        similarity=stored.model.similarity,
        information=stored.information,
        posterior_set=together,
        posterior_caption=alone,
        posterior=posterior,
        fdr=q,
        kind=kind,
        order=order,
        conflicts=conflicts(evidence, kind, image_of),
        rate=rate,
        mechanisms=tuple(mechanisms),
        list_length=listed,
        unreliable_reason=_why_not(rate, auroc),
        auroc=auroc,
        is_rankable=rate.high <= MAX_RATE and auroc >= RANKING_AUROC,
        made=Provenance("", by, folds.count, seed, "", __version__),
        upper_bound=most_mismatched(
            *(-stored.information, -wrong.information, -evidence.hard),
            *(_trust(posterior, image_of)[evidence.hard_image], pair_group, rate),
        ),
        **empty_fields(len(image_of)),
    )


def _trust(
    posterior: Float[np.ndarray, " pairs"], image_of: Int[np.ndarray, " pairs"]
) -> Float[np.ndarray, " images"]:
    """Mean probability that the captions of each image are its own; images without any have 0."""
    counts = np.bincount(image_of)
    return np.bincount(image_of, 1 - posterior) / np.maximum(counts, 1)


class _Scale(NamedTuple):
    """Map the suspicion scores of both levels to probabilities and one ranking.

    Attributes:
      sets: density ratio of the caption sets, and the rate of swapped sets.
      captions: the same for single captions.
      sees_near: whether all scores rank the pairs whose posterior is near 0.
    """

    sets: tuple[Curve, float]
    captions: tuple[Curve, float]
    sees_near: bool

    def posteriors(self, sets: np.ndarray, captions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the probability of a swapped set, of a swapped caption, and of either."""
        (set_curve, set_rate), (caption_curve, caption_rate) = self.sets, self.captions
        together = set_curve.posterior(sets, set_rate)
        alone = caption_curve.posterior(captions, caption_rate)
        return together, alone, 1 - (1 - together) * (1 - alone)

    def suspicion(
        self, sets: np.ndarray, captions: np.ndarray, information: np.ndarray
    ) -> np.ndarray:
        """Return one ranking score per pair, 0 to 2: above 1 by posterior, below by raw score."""
        both = self.posteriors(sets, captions)[2]
        last = captions if self.sees_near else -information
        raw = 0.5 + np.arctan(last) / np.pi  # in (0, 1), in the same order
        return np.where(both < SURE[not self.sees_near], raw, 1 + both)


def _mechanism(
    name: str,
    stored: Float[np.ndarray, " pairs"],
    moved: Float[np.ndarray, "pairs k"],
    least: float,
    cosine: float,
    rate: float,
) -> Mechanism:
    """Measure how well a kind of mismatch is found, corrected for mismatches already stored."""
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
    """Correct an AUROC for the mismatched stored pairs, against which it would be one half."""
    return float(np.clip((auroc - rate / 2) / max(1 - rate, 1e-9), 0, 1))


def _why_not(rate: Rate, auroc: float) -> str:
    """Return the reason why the rate cannot be estimated; "" if it can.

    Matched pairs that score like random pairs count as mismatched. This inflates the rate, and the
    remaining pairs are less well separated from random pairs.
    """
    if rate.estimate > MAX_RATE:
        return (
            f"{rate.estimate:.0%} of the pairs match no better than random pairs, so either nearly "
            "all are mismatched, or these embeddings do not show which captions fit"
        )
    if auroc < MIN_AUROC:
        return (
            f"the AUROC of matched against random pairs may be as low as {auroc:.2f}, expected at "
            f"least {MIN_AUROC}: there are too few pairs, or these embeddings do not show which "
            "captions fit"
        )
    return ""
