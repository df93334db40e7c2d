"""Compute two suspicion scores per pair: for the whole set of captions, and for this one alone.

Captions that were swapped as a set still agree with each other, so agreement does not clear them.
Each score is therefore compared with known mismatches of its own kind, its null:

* Sets: the mean information of all captions of the image, with the sign changed. The null moves
  whole sets to other images.
* Captions: the log odds of a logistic regression on all scores of the pair. It is trained to tell
  single captions that were moved on purpose from the pairs as they are, weighted by how probably
  they are matched. Each fold is scored by the regression of the other folds. The null is these
  moved captions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int, UInt64

from l2rm_jax.data.content_hashes import hash_keys
from l2rm_jax.judging.scores import Evidence, Moved, Scores

_RIDGE_PAIRS = 30_000  # with this many pairs the ridge weighs as much as one pair, with fewer more
_STEPS = 20
_TOLERANCE = 1e-5
_FIT_PAIRS = 50_000  # pairs in the sample that a regression is fitted to, at most
_BLOCK = 16384  # pairs


class Level(NamedTuple):
    """Suspicion scores of one level, higher for worse pairs.

    Attributes:
      stored: [units] of the images or pairs.
      null: [units, k] of known mismatches of that level.
    """

    stored: Float[np.ndarray, " units"]
    null: Float[np.ndarray, "units k"]


class SuspicionScores(NamedTuple):
    """Suspicion scores of both levels.

    Attributes:
      sets: of each image that has captions, in ascending order of their rows.
      captions: of each pair.
      together: [pairs, k] of the caption after all captions of its image have moved with it.
      near: [pairs, 1] of the caption after it has moved to a similar image.
      set_of_wrong: [pairs, k] of the set of the image that the caption alone has moved to.
      set_of_near: [pairs, 1] the same for the similar image.
    """

    sets: Level
    captions: Level
    together: Float[np.ndarray, "pairs k"]
    near: Float[np.ndarray, "pairs 1"]
    set_of_wrong: Float[np.ndarray, "pairs k"]
    set_of_near: Float[np.ndarray, "pairs 1"]


def suspicion_scores(
    evidence: Evidence,
    image_of: Int[np.ndarray, " pairs"],
    pair_fold: Int[np.ndarray, " pairs"],
    pair_key: UInt64[np.ndarray, " pairs"],
    weights: Float32[np.ndarray, "folds pairs"],
) -> SuspicionScores:
    """Compute both suspicion scores of all pairs and of known mismatches.

    Args:
      evidence: scores of the pairs and of k known mismatches each.
      image_of: [pairs] row of the image that each caption is stored with.
      pair_fold: [pairs] fold of each pair; at least two folds.
      pair_key: [pairs] content hashes, by which at most 50,000 pairs are chosen for each
        regression, whatever the order of the data.
      weights: of each pair in the regression that scores each fold; 0 for the pairs of that fold.
    """
    information, moved = evidence.stored.information, evidence.wrong.scores.information
    position, counts = np.unique(image_of, return_inverse=True, return_counts=True)[1:]
    total = np.bincount(position, information)
    moved_total = np.stack([np.bincount(position, column) for column in moved.T], axis=1)
    rest, siblings = total[position] - information, counts[position] - 1
    stored = _columns(evidence.stored, rest, siblings)
    together = evidence.wrong.scores._replace(
        neighbours=evidence.wrong.scores.neighbours._replace(
            agreement=np.broadcast_to(
                evidence.stored.neighbours.agreement[:, None],
                evidence.wrong.scores.neighbours.agreement.shape,
            )
        )
    )
    kinds = evidence.wrong, evidence.near
    left = [_left_behind(kind, image_of, information) for kind in kinds]
    others = [
        *(_columns(kind.scores, *rest) for kind, rest in zip(kinds, left, strict=True)),
        _columns(together, moved_total[position] - moved, siblings[:, None]),
    ]
    alone, null, near, with_set = _regress(stored, others, pair_fold, pair_key, weights)
    of_set = Level(-total / counts, -moved_total / counts[:, None])
    # The set of a wrong image once the caption has taken a place in it.
    sets = (
        -(rest + kind.scores.information) / (siblings + 1)
        for kind, (rest, siblings) in zip(kinds, left, strict=True)
    )
    return SuspicionScores(of_set, Level(alone, null), with_set, near, *sets)


def _left_behind(moved: Moved, image_of: np.ndarray, information: np.ndarray) -> tuple:
    """Return the total information of the captions left with each wrong image, and their number."""
    total, counts = np.bincount(image_of, information), np.bincount(image_of)
    return total[moved.image] - information[moved.replaced], counts[moved.image] - 1


def _columns(
    scores: Scores, rest: Float[np.ndarray, "..."], siblings: Int[np.ndarray, "..."]
) -> Float32[np.ndarray, "... columns"]:
    """Stack the scores, the mean information of the siblings, and whether there are any."""
    near = scores.neighbours
    agreement = np.moveaxis(near.agreement, -1, 0)
    columns = *scores.model, near.of_images, near.of_captions, *agreement
    mean = np.where(siblings > 0, rest / np.maximum(siblings, 1), 0)
    has_any = np.broadcast_to(siblings > 0, mean.shape)
    return np.stack([*columns, mean, has_any], axis=-1, dtype=np.float32)


def _regress(
    stored: Float[np.ndarray, "pairs columns"],
    moved: Sequence[Float[np.ndarray, "pairs k columns"]],
    fold: Int[np.ndarray, " pairs"],
    key: UInt64[np.ndarray, " pairs"],
    weights: Float32[np.ndarray, "folds pairs"],
) -> list[np.ndarray]:
    """Return the log odds of having been moved alone, by a regression on the other folds.

    Args:
      stored: the pairs as they are.
      moved: known mismatches; the regression is fitted to the first kind.
      fold: of each pair.
      key: of each pair.
      weights: of the pairs as they are, for the regression that scores each fold.

    Returns:
      The odds of the pairs, then of each kind of known mismatches.
    """
    centre, scale = stored.mean(axis=0), np.maximum(stored.std(axis=0), 1e-9)

    def features(columns: np.ndarray) -> np.ndarray:
        return _quadratic((columns.reshape(-1, len(centre)) - centre) / scale)

    found = [np.empty(columns.shape[:-1]) for columns in (stored, *moved)]
    for k in np.unique(fold):
        rows, draw = np.flatnonzero(weights[k]), hash_keys(key, int(k))
        rows = rows[np.argsort(draw[rows], kind="stable")[:_FIT_PAIRS]]
        choice = (draw[rows] >> np.uint64(32)) % np.uint64(moved[0].shape[1])
        used = moved[0][rows, choice.astype(np.int64)]
        coefficients = _logistic(features(stored[rows]), features(used), weights[k, rows])
        here = np.flatnonzero(fold == k)
        for some in np.array_split(here, len(here) // _BLOCK + 1):
            for odds, columns in zip(found, (stored, *moved), strict=True):
                odds[some] = (features(columns[some]) @ coefficients).reshape(odds[some].shape)
    return found


def _quadratic(columns: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "n f"]:
    """One, the columns and their products."""
    i, j = np.triu_indices(columns.shape[1])
    ones = np.ones((len(columns), 1))
    return np.concatenate([ones, columns, columns[:, i] * columns[:, j]], axis=1)


def _logistic(
    negative: Float[np.ndarray, "n f"],
    positive: Float[np.ndarray, "m f"],
    weight: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " f"]:
    """Coefficients of a logistic regression with a ridge, both classes of equal weight.

    Args:
      negative: features of one class.
      positive: features of the other class.
      weight: of the first class.
    """
    features = np.concatenate([negative, positive])
    target = np.repeat([0.0, 1.0], [len(negative), len(positive)])
    of_positive = np.full(len(positive), len(negative) / len(positive))
    weight = np.concatenate([weight / weight.mean(), of_positive])
    ridge = max(1.0, _RIDGE_PAIRS / len(negative))
    coefficients = np.zeros(features.shape[1])
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(features @ coefficients, -30, 30)))
        gradient = features.T @ (weight * (target - p)) - ridge * coefficients
        scaled = features * (weight * p * (1 - p))[:, None]
        step = np.linalg.solve(scaled.T @ features + ridge * np.eye(len(coefficients)), gradient)
        coefficients += step
        if np.abs(step).max() < _TOLERANCE:
            break
    return coefficients
