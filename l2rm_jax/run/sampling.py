"""Sample training pairs by the probability that they are matched (`train.draw`)."""

import math
from dataclasses import replace

import numpy as np

from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.errors import DataError
from l2rm_jax.methods import EpochPlan

EVEN, BY_JUDGEMENT, REMATCHED = DRAWS = ("even", "judgement", "rematched")


def draw_pairs(plan: EpochPlan, train: TrainPairs, seed: int, epoch: int) -> EpochPlan:
    """Keep each pair of a plan with the probability that it is matched, and add rematched ones.

    An epoch has each pair at most once; the expected number of pairs is the number of matched ones.
    Rematched pairs, if there are any, are added with the probability of their weight.

    Args:
      plan: plan of the epoch, whose streams are rows of pairs, `[n]`.
      train: the training pairs, with a posterior.
      seed: seed of the run.
      epoch: the epoch, counted from 0.

    Returns:
      A plan with streams of that shape; with rematched pairs `[n, 2]`: the pair that gives the
      image, and the pair that gives the caption.

    Raises:
      DataError: no pair is drawn.
    """
    rng, matched = np.random.default_rng([seed, epoch]), 1 - train.posterior
    drawn = rng.random(len(train)) < matched
    streams = {name: rows[drawn[rows]] for name, rows in plan.streams.items()}
    draw, expected = BY_JUDGEMENT, math.fsum(matched)
    if train.rematched is not None:
        draw, expected = REMATCHED, expected + math.fsum(train.rematched.weight)
        more = _draw_rematched(train, rng)
        streams = {
            name: np.concatenate([np.stack([rows, rows], axis=1), more])
            for name, rows in streams.items()
        }
    for name, rows in streams.items():
        if not len(rows):
            of = "probabilities of being matched" if draw == BY_JUDGEMENT else "weights"
            raise DataError(
                f"train.draw={draw} draws none of the {len(plan.streams[name])} training pairs: "
                f"their {of} sum to {expected:.2g}"
            )
    return replace(plan, streams=streams)


def _draw_rematched(train: TrainPairs, rng: np.random.Generator) -> np.ndarray:
    """Pairs that give image and caption, `[n, 2]`, of each rematched pair that is drawn."""
    image, caption, weight = train.rematched
    drawn = rng.random(len(weight)) < weight
    stored, pair = np.unique(train.stored_image, return_index=True)
    return np.stack([pair[np.searchsorted(stored, image[drawn])], caption[drawn]], axis=1)
